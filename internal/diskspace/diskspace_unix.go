//go:build linux || darwin

package diskspace

import "syscall"

// Of returns what the file system of a folder has.
func Of(dir string) (Space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return Space{}, err
	}
	return Space{Free: s.Bavail * uint64(s.Bsize), Total: s.Blocks * uint64(s.Bsize), FreeFiles: s.Ffree,
		AllFiles: s.Files}, nil
}
