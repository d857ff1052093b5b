//go:build linux || darwin

package route

import "syscall"

// openFiles returns how many files this process may have open.
func openFiles() (most uint64, known bool) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	return limit.Cur, true
}
