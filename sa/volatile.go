package sa

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// volatileFS are the file systems whose content is gone after a reboot, by what statfs(2) calls them. An overlayfs with its
// upper directory on one of these is not told from one with a disk below it.
var volatileFS = map[uint32]string{0x01021994: "tmpfs", 0x858458f6: "ramfs"}

// VolatileDir names the file system ("tmpfs", "ramfs") of a directory, or, where that does not exist yet, of the nearest one
// above it, if a reboot empties it; "" if not. A Store there begins at 1 again after a reboot, with the keys that it had
// before. It cannot tell an overlayfs whose upper directory is a tmpfs. Errors are the system's.
func VolatileDir(dir string) (string, error) {
	for {
		var st syscall.Statfs_t
		err := syscall.Statfs(dir, &st)
		if err == nil {
			return volatileFS[uint32(st.Type)], nil
		}
		up := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || up == dir {
			return "", fmt.Errorf("sa: find the file system of %s: %w", dir, err)
		}
		dir = up
	}
}
