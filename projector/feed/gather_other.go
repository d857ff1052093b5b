//go:build !linux

package feed

import (
	"errors"
	"net"
)

// wakeup is only implemented for Linux.
type wakeup struct{}

func newWakeup(net.Conn) *wakeup { return nil }

func (*wakeup) set(int) error { return errors.ErrUnsupported }

func (*wakeup) read([]byte, int) (int, error) { return 0, errors.ErrUnsupported }
