//go:build !linux && !darwin

package consensus

import "errors"

// space is not supported on this system.
func space(string) (free, total uint64, err error) { return 0, 0, errors.ErrUnsupported }
