// Package diskspace measures what a file system has left, in bytes and in files: one without inodes refuses new files,
// however many bytes are free. It does not decide what is done about it.
package diskspace

import "fmt"

// leastFiles is how many files should be left; on a small file system a fiftieth of all is enough.
const leastFiles = 256

// Space is what a file system has, for a user without privileges.
type Space struct {
	Free, Total         uint64 // in bytes
	FreeFiles, AllFiles uint64 // AllFiles is 0 where files have no limit of their own
}

// FewFiles describes a file system on which too few files can be made in folder dir; it returns "" if there are enough.
func (s *Space) FewFiles(dir string) string {
	least := min(leastFiles, s.AllFiles/50)
	if s.AllFiles == 0 || s.FreeFiles >= max(least, 1) {
		return ""
	}
	return fmt.Sprintf("%d of %d files (inodes) are left under %s, want at least %d: remove files that are not needed, "+
		"or make the file system anew with more inodes", s.FreeFiles, s.AllFiles, dir, max(least, 1))
}
