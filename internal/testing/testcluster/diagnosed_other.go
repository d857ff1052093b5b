//go:build !linux

package testcluster

import (
	"errors"
	"net/netip"
)

// diagnosed is not known here.
func diagnosed(_, _ netip.AddrPort) (string, error) { return "", errors.ErrUnsupported }
