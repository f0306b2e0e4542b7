package sa

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrStoreExposed says that others than root and the user who runs the gateway own or can write a Store's directory or a file in it. They
// could put older marks back, and with them have sequence numbers used again, or a link to a file that is then overwritten.
var ErrStoreExposed = errors.New("others can change the sequence store")

// ErrStoreForeign says that what has the name of one of a Store's files is none: a link, or no regular file.
var ErrStoreForeign = errors.New("it is no file of the sequence store")

// others says what others than root and this user can do with it, "" if they cannot write it. Where an access control list allows more, the
// group's bits of the mode show it.
func others(st os.FileInfo) string {
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	switch mode := st.Mode().Perm(); {
	case uid != 0 && uid != os.Geteuid():
		return fmt.Sprintf("belongs to user %d (mode %04o)", uid, mode)
	case mode&0o002 != 0:
		return fmt.Sprintf("can be written by everybody (mode %04o)", mode)
	case mode&0o020 != 0:
		return fmt.Sprintf("can be written by its group (mode %04o)", mode)
	}
	return ""
}

// storeOwner is who is to own the store, as chown(1) takes it.
func storeOwner() string {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Sprint(uid)
	}
	return "root"
}

// ownDir refuses a directory in which others can make and remove files.
func ownDir(d *os.File) error {
	st, err := d.Stat()
	if err != nil {
		return err
	}
	if what := others(st); what != "" {
		return fmt.Errorf("%w: the directory %s %s. If you trust what is in it: chown -R %s: %s; chmod 700 %s. If not, remove it, "+
			"and give every SA with a static key a new one", ErrStoreExposed, d.Name(), what, storeOwner(), d.Name(), d.Name())
	}
	return nil
}

// openOwn opens a file of the store. Neither through a link, symbolic or hard, nor anything but a regular file, nor one that others can
// write: what is written or believed through those is somebody else's choice. The content of a device might never end, and the
// opening of a pipe not either.
func openOwn(name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s: %w but a symbolic link; remove it, and find out who put it there", name, ErrStoreForeign)
	} else if err != nil {
		return nil, err
	}
	if err := ownFile(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func ownFile(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	links := st.Sys().(*syscall.Stat_t).Nlink
	switch what := others(st); {
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s: %w (%v); move it away", f.Name(), ErrStoreForeign, st.Mode())
	case links > 1: // 0: it was removed just now, which the next look finds
		return fmt.Errorf("%s: %w alone: it has %d names (hard links); remove the others, or this one if it is not the store's",
			f.Name(), ErrStoreForeign, links)
	case what != "":
		return fmt.Errorf("%w: %s %s. If you trust what is in it: chown %s: %s; chmod 600 %s. If not, remove it, "+
			"and give every SA with a static key a new one", ErrStoreExposed, f.Name(), what, storeOwner(), f.Name(), f.Name())
	}
	return nil
}
