package feed

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// wakeup is a TCP connection whose reader is woken for no less than it has been set to (SO_RCVLOWAT).
type wakeup struct {
	raw   syscall.RawConn
	check func(fd uintptr) bool // made once
	buf   []byte                // of read
	want  int
	woken bool
	n     int
	err   error
}

// newWakeup is nil for what is no plain TCP connection: what is decrypted has been read already.
func newWakeup(conn net.Conn) *wakeup {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	w := &wakeup{raw: raw}
	w.check = w.try
	return w
}

// set says how many bytes wake the reader.
func (w *wakeup) set(least int) error {
	var serr error
	if err := w.raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT,
			least)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("setsockopt", serr)
}

// read reads when want bytes are there, or when the reader is woken, which the end of the connection does too; 0 bytes
// are the end. Errors: those of the read deadline and of the connection.
func (w *wakeup) read(buf []byte, want int) (int, error) {
	w.buf, w.want, w.woken, w.n, w.err = buf, want, false, 0, nil
	err := w.raw.Read(w.check)
	w.buf = nil
	if err == nil {
		err = os.NewSyscallError("read", w.err)
	}
	return w.n, err
}

// try is false when the reader is to be woken again.
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
