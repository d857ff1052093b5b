package cli

import (
	"fmt"
	"os"
)

// replaceable returns an error if path exists and is not a file. What is written under another name and renamed to
// path takes the place of whatever is there: for root, /dev/null would be gone.
func replaceable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil || info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return fmt.Errorf("%s is a folder", path)
	}
	return fmt.Errorf("%s is a device or a pipe, not a file", path)
}
