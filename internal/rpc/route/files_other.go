//go:build !linux && !darwin

package route

// openFiles reports that the limit of open files is unknown on this platform.
func openFiles() (most uint64, known bool) { return 0, false }
