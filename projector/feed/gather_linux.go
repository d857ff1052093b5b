package feed

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is the socket of a TCP connection.
type socket struct{ raw syscall.RawConn }

// newSocket returns nil for anything but a TCP connection.
func newSocket(conn net.Conn) *socket {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return &socket{raw: raw}
}

// wakeAt sets the number of bytes that wake the reader (SO_RCVLOWAT), and makes room for them.
func (s *socket) wakeAt(least int) error {
	var serr error
	if err := s.raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, least)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("setsockopt", serr)
}

// wakesAt returns the number that the system has made of wakeAt's: it is bounded by the receive buffer's limit.
func (s *socket) wakesAt() (least int, err error) {
	var gerr error
	if err := s.raw.Control(func(fd uintptr) {
		least, gerr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT)
	}); err != nil {
		return 0, err
	}
	return least, os.NewSyscallError("getsockopt", gerr)
}

// wakeup reads a socket when at least a number of bytes is there.
type wakeup struct {
	*socket
	check func(fd uintptr) bool // try; stored to avoid an allocation per read
	buf   []byte                // of read
	want  int
	woken bool
	n     int
	err   error
}

func newWakeup(s *socket) *wakeup {
	w := &wakeup{socket: s}
	w.check = w.try
	return w
}

// read reads when want bytes are there, or at the second wake-up, which the end of the connection causes as well; 0
// bytes mean the end. Errors: those of the read deadline and of the connection.
func (w *wakeup) read(buf []byte, want int) (int, error) {
	w.buf, w.want, w.woken, w.n, w.err = buf, want, false, 0, nil
	err := w.raw.Read(w.check)
	w.buf = nil
	if err == nil {
		err = os.NewSyscallError("read", w.err)
	}
	return w.n, err
}

// try reports whether the read is done; if not, the reader waits for the next wake-up.
func (w *wakeup) try(fd uintptr) bool {
	if !w.woken {
		w.woken = true
		if have, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && have < w.want {
			return false
		}
	}
	for {
		w.n, w.err = unix.Read(int(fd), w.buf)
		switch {
		case errors.Is(w.err, unix.EINTR):
		case errors.Is(w.err, unix.EAGAIN):
			w.n, w.err = 0, nil
			return false
		default:
			w.n = max(w.n, 0)
			return true
		}
	}
}
