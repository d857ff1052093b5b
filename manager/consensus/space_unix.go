//go:build linux || darwin

package consensus

import "syscall"

// space returns the bytes available to this user on the file system of a folder, and its total size.
func space(dir string) (free, total uint64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), nil
}
