package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"culvert/configs"
)

func main() {
	out := &output{to: os.Stdout}
	c := root()
	c.SetOut(out)
	err := c.ExecuteContext(context.Background())
	if err == nil && out.failed != nil {
		err = fmt.Errorf("the output is not whole: %w", out.failed)
	}
	if err == nil {
		return
	}
	if !errors.Is(err, errReported) {
		fmt.Fprint(os.Stderr, explain(err, os.Geteuid()))
	}
	var how interface{ ExitStatus() int }
	if errors.As(err, &how) {
		os.Exit(how.ExitStatus())
	}
	os.Exit(1)
}

// output is where a command prints. It remembers an error that the command may not look at: who reads a file should not find half
// of it after a success.
type output struct {
	to     io.Writer
	failed error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.to.Write(b)
	if err != nil && o.failed == nil {
		o.failed = err
	}
	return n, err
}

// errReported ends a command that has already said what was wrong.
var errReported = errors.New("reported")

// explain is what a user is told of an error: every error of several begins with the program's name, and further lines of one are
// indented below it.
func explain(err error, user int) string {
	var b strings.Builder
	for _, text := range apart(err) {
		first, more, _ := strings.Cut(strings.TrimRight(text, "\n"), "\n")
		fmt.Fprintf(&b, "culvert: %s\n", first)
		for line := range strings.Lines(more) {
			if !strings.HasPrefix(line, "  ") {
				line = "    " + line
			}
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	if errors.Is(err, unix.EPERM) && !strings.Contains(b.String(), "root") {
		advice := "run it as root, or with CAP_NET_ADMIN"
		if user == 0 {
			advice = "root has no CAP_NET_ADMIN here: give it to the container (--cap-add NET_ADMIN), or run it outside"
		}
		fmt.Fprintf(&b, "    %s\n", advice)
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		b.WriteString("    the limit of open files is reached: raise it (ulimit -n, or LimitNOFILE= in the systemd unit)\n")
	}
	return b.String()
}

// apart takes errors that were joined apart.
func apart(err error) (texts []string) {
	switch e := err.(type) {
	case configs.Errors:
		return strings.Split(e.Error(), "\n") // those that it tells, and the number of the others
	case interface{ Unwrap() []error }:
		var parts, whole []string
		for _, one := range e.Unwrap() {
			parts, whole = append(parts, apart(one)...), append(whole, one.Error())
		}
		if strings.Join(whole, "\n") == err.Error() {
			return parts
		}
	}
	return []string{err.Error()}
}
