//go:build !linux

package testcluster

import (
	"errors"
	"net/netip"
)

// diagnosed is not supported on this system.
func diagnosed(_, _ netip.AddrPort) (string, error) { return "", errors.ErrUnsupported }
