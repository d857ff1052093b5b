//go:build !linux

package feed

import (
	"errors"
	"net"
)

// socket and wakeup are only implemented for Linux.
type (
	socket struct{}
	wakeup struct{}
)

func newSocket(net.Conn) *socket { return nil }

func newWakeup(*socket) *wakeup { return nil }

func (*socket) wakeAt(int) error { return errors.ErrUnsupported }

func (*socket) wakesAt() (int, error) { return 0, errors.ErrUnsupported }

func (*wakeup) read([]byte, int) (int, error) { return 0, errors.ErrUnsupported }
