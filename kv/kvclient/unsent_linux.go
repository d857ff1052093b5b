package kvclient

import (
	"crypto/tls"
	"net"

	"golang.org/x/sys/unix"
)

// unsent returns how many of the bytes written to a connection the peer's system has not acknowledged yet; 0 if that
// is unknown.
func unsent(conn net.Conn) (n int) {
	if over, is := conn.(*tls.Conn); is {
		conn = over.NetConn()
	}
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	if err := raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); err != nil {
		return 0
	}
	return max(n, 0)
}
