package configs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// exposed says what lets others than its owner read or replace a file with keys, nil if nothing does: its mode, its owner, and
// those of every directory and link on the way to it, as ssh does with its keys. In a directory with the sticky bit, such as
// /tmp, nobody can replace what belongs to another. what begins the sentence: "the file holds keys".
func exposed(what, path string, st fs.FileInfo) *problem {
	abs, err := filepath.Abs(path)
	if err != nil {
		return &problem{what + ", and its directory is not known: " + err.Error(), "give its whole path", ErrAccess}
	}
	if st.Mode()&0o077 != 0 {
		return &problem{fmt.Sprintf("%s, and its mode %04o lets others than its owner open it", what, st.Mode().Perm()), "run: chmod 600 " + shellWord(abs), ErrAccess}
	}
	if p := foreign(what+", and it", abs, st); p != nil {
		return p
	}
	return exposedWay(what, abs)
}

// maxLinks is how many symbolic links a path may have, as for the kernel (path_resolution(7)).
const maxLinks = 40

// exposedWay walks an absolute path as the kernel does.
func exposedWay(what, abs string) *problem {
	at, rest := "/", strings.Split(abs, "/")
	for links := 0; len(rest) > 0; {
		next := rest[0]
		rest = rest[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		dir, err := os.Stat(at)
		if err != nil {
			return unreadableWay(what, err)
		}
		if p := foreign(fmt.Sprintf("%s, and the directory %s, in which it can be replaced,", what, strconv.Quote(at)), at, dir); p != nil {
			return p
		}
		if dir.Mode().Perm()&0o022 != 0 && dir.Mode()&fs.ModeSticky == 0 {
			return &problem{fmt.Sprintf("%s, and the mode %04o of the directory %s lets others replace it", what, dir.Mode().Perm(), strconv.Quote(at)), "run: chmod go-w " + shellWord(at), ErrAccess}
		}
		step := filepath.Join(at, next)
		st, err := os.Lstat(step)
		if err != nil {
			return unreadableWay(what, err)
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			at = step
			continue
		}
		if p := foreign(fmt.Sprintf("%s, and the link %s, which leads to it,", what, strconv.Quote(step)), step, st); p != nil {
			p.mend = strings.Replace(p.mend, "chown", "chown -h", 1)
			return p
		}
		target, err := os.Readlink(step)
		if links++; err != nil || links > maxLinks {
			return &problem{what + ", and the links that lead to it cannot be followed", "write its path without them", ErrAccess}
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return nil
}

func unreadableWay(what string, err error) *problem {
	return &problem{what + ", and who may replace it is not known: " + err.Error(), "run culvert as the owner of the file", ErrAccess}
}

// foreign says that something belongs neither to root nor to whoever runs the program.
func foreign(what, path string, st fs.FileInfo) *problem {
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok || trusted(int(s.Uid)) {
		return nil
	}
	return &problem{fmt.Sprintf("%s belongs to user %d, who is neither root nor the one who runs culvert", what, s.Uid),
		fmt.Sprintf("run: chown %d %s", os.Geteuid(), shellWord(path)), ErrAccess}
}

// trusted says whether a user can be trusted with the keys: root, who runs the program, and who became root with sudo to run it.
func trusted(uid int) bool {
	me := os.Geteuid()
	if uid == 0 || uid == me {
		return true
	}
	sudo, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	return me == 0 && err == nil && uid == sudo
}
