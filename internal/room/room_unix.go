//go:build linux || darwin

package room

import "syscall"

// Of returns what the file system of a folder has.
func Of(dir string) (Room, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return Room{}, err
	}
	return Room{Free: s.Bavail * uint64(s.Bsize), Total: s.Blocks * uint64(s.Bsize), FreeFiles: s.Ffree,
		AllFiles: s.Files}, nil
}
