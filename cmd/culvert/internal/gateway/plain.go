package gateway

import (
	"slices"
	"strings"
)

// packages are the names that errors have in front of them, one for each package that they came through.
var packages = []string{"link", "dataplane", "offload", "sa", "sequence store", "hostnet", "padlock", "multibuf", "soft", "pool", "ipsecmb"}

// Plain is an error's text for a user, to whom the names of packages in it say nothing.
func Plain(err error) string {
	parts := strings.Split(err.Error(), ": ")
	text := parts[:0:0]
	for i, p := range parts {
		// The last part is no prefix of anything.
		if i == len(parts)-1 || !slices.Contains(packages, p) {
			text = append(text, p)
		}
	}
	return strings.Join(text, ": ")
}

// Plainly is the error with Plain's text.
func Plainly(err error) error { return &plainError{err} }

type plainError struct{ error }

func (e *plainError) Error() string { return Plain(e.error) }
func (e *plainError) Unwrap() error { return e.error }
