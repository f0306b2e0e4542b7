package configs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The classes of mistakes, for errors.Is. Every [Error] wraps exactly one of them.
var (
	ErrRead     = errors.New("cannot be read")        // the file, or a key file, is missing or unreadable
	ErrAccess   = errors.New("readable by others")    // a file with keys that others than its owner may open
	ErrSyntax   = errors.New("not TOML")              // what is written is no TOML document
	ErrUnknown  = errors.New("unknown key")           // a key or table that means nothing here
	ErrType     = errors.New("wrong type")            // a string for a number, a table for a list
	ErrValue    = errors.New("value not allowed")     // out of range, not an address, not one of the words
	ErrMissing  = errors.New("missing")               // a key that must be there
	ErrConflict = errors.New("conflicting settings")  // two places that cannot both hold
	ErrKey      = errors.New("unusable key material") // length, digits, weak or shared keys
	ErrRestart  = errors.New("needs a restart")       // a change that a running gateway cannot take up
)

// Pos is a place in a configuration or key file. Line and Column count from 1, columns in bytes as compilers count them;
// Line 0 means the file as a whole.
type Pos struct {
	File         string
	Line, Column int
}

// String returns file:line:column, or the file alone for a position without a line.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Error is one mistake: where it is, which key it concerns, what is wrong, and how to mend it. No part of it ever holds key
// material.
type Error struct {
	Pos   Pos
	Key   string // dotted, as [Config.Pos] takes it: "tunnel.branch.out.spi"; empty for the file as a whole
	What  string // what is wrong
	Mend  string // what to do about it
	Class error  // one of the Err… sentinels
	Cause error  // the operating system's error, if there is one
}

// Error returns the mistake on one line: file:line:column: key: what is wrong; how to mend it.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Pos.String())
	b.WriteString(": ")
	if e.Key != "" {
		b.WriteString(e.Key)
		b.WriteString(": ")
	}
	b.WriteString(e.What)
	if e.Mend != "" {
		b.WriteString("; ")
		b.WriteString(e.Mend)
	}
	return b.String()
}

// Unwrap lets errors.Is find the class and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Class}
	}
	return []error{e.Class, e.Cause}
}

// Errors are all mistakes of a configuration, in the order of their places.
type Errors []*Error

// maxLines is how many mistakes, and how many warnings, are told; the rest are counted. Whoever has more of them mends these
// first, and a log is not flooded.
const maxLines = 20

// Error returns one line per mistake, of the first twenty, and the number of the others.
func (es Errors) Error() string {
	var lines []string
	for _, e := range es[:min(len(es), maxLines)] {
		lines = append(lines, e.Error())
	}
	if rest := len(es) - maxLines; rest > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", rest))
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is and errors.As look into every mistake.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}

// err returns the list as an error, nil when it is empty, sorted by place. Mistakes of other files (key files) come after
// those of the configuration itself only if their name sorts so: a file's mistakes stay together.
func (es Errors) err() error {
	if len(es) == 0 {
		return nil
	}
	slices.SortStableFunc(es, func(a, b *Error) int { return comparePos(a.Pos, b.Pos) })
	return es
}

func comparePos(a, b Pos) int {
	if c := strings.Compare(a.File, b.File); c != 0 {
		return c
	}
	if a.Line != b.Line {
		return a.Line - b.Line
	}
	return a.Column - b.Column
}

// Warning is something that works and is still worth a line in the log: a weak transform, a peer inside its own tunnel.
type Warning struct {
	Pos  Pos
	Key  string
	What string
}

// String returns the warning as file:line:column: key: what.
func (w Warning) String() string { return w.Pos.String() + ": " + w.Key + ": " + w.What }

// EachWarning calls f with the first twenty warnings and, if there are more, with their number.
func (c *Config) EachWarning(f func(string)) {
	for _, w := range c.Warnings[:min(len(c.Warnings), maxLines)] {
		f(w.String())
	}
	if rest := len(c.Warnings) - maxLines; rest > 0 {
		f(fmt.Sprintf("… and %d more", rest))
	}
}
