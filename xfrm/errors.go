package xfrm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Error is a refusal in the form in which netlink answers it: AppendError writes it.
type Error struct {
	Errno unix.Errno // what the kernel answers in the same case
	Attr  uint32     // bytes from the start of the message, its header included, to the attribute at fault; 0: none is
	Msg   string     // what is wrong and how to mend it; no keys
}

// Error is the text, or the errno's own where there is none.
func (e *Error) Error() string {
	if e.Msg == "" {
		return e.Errno.Error()
	}
	return e.Msg
}

// Unwrap gives the errno: errors.Is(err, unix.EEXIST) works.
func (e *Error) Unwrap() error { return e.Errno }

// Errorf makes an Error that blames no attribute.
func Errorf(errno unix.Errno, format string, args ...any) *Error {
	return &Error{Errno: errno, Msg: fmt.Sprintf(format, args...)}
}

// AsError is the Error in err's chain, or one with the errno in it, or EIO.
func AsError(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		errno = unix.EIO
	}
	return &Error{Errno: errno, Msg: err.Error()}
}

// errAt blames the attribute that starts at byte off of the message.
func errAt(errno unix.Errno, off int, format string, args ...any) *Error {
	return &Error{Errno: errno, Attr: uint32(off), Msg: fmt.Sprintf(format, args...)}
}
