//go:build !linux && !darwin

package room

import "errors"

// Of is not supported on this system.
func Of(string) (Room, error) { return Room{}, errors.ErrUnsupported }
