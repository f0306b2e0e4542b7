package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// said runs a command line and gives what it printed, and its error.
func said(args ...string) (string, error) {
	c := root()
	var b bytes.Buffer
	c.SetOut(&b)
	c.SetErr(io.Discard)
	c.SetArgs(args)
	err := c.Execute()
	return b.String(), err
}

// A word that is no command is an error at every level, and prints no help; the near names are suggested, else all are listed.
func TestUnknownCommands(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"statsu", `unknown command "statsu" for "culvert": did you mean status?`},
		{"frobnicate", `unknown command "frobnicate" for "culvert": there are check, completion, demo,`},
		{"guard foo", `unknown command "foo" for "culvert guard": there are remove, show`},
		{"guard remov", `did you mean remove?`},
		{"sa foo", `for "culvert sa": there are list`},
		{"sa lst", `did you mean list?`},
		{"sa lst --json", `unknown command "lst" for "culvert sa": did you mean list?`},
		{"policy lists", `did you mean list?`},
		{"completion bassh", `did you mean bash?`},
		{"help foo", `unknown command "foo" for "culvert"`},
		{"help guard remov", `unknown command "remov" for "culvert guard": did you mean remove?`},
		{"guard remove --hlp", `unknown flag: --hlp: did you mean --help?`},
		{"status --nonsense", `unknown flag: --nonsense: culvert status --help lists the flags`},
		{"guard -q", `unknown shorthand flag: 'q' in -q: culvert guard --help lists the flags`},
	} {
		out, err := said(strings.Fields(c.line)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("culvert %s: error %v, which should say %q; printed %q", c.line, err, c.want, out)
		}
	}
}

// Every command that groups others refuses an unknown word, whichever are added: no level is forgotten.
func TestGroupsAreStrict(t *testing.T) {
	groups := 0
	var visit func(c *cobra.Command, path []string)
	visit = func(c *cobra.Command, path []string) {
		for _, sub := range c.Commands() {
			visit(sub, append(slices.Clone(path), sub.Name()))
		}
		if !c.HasSubCommands() {
			return
		}
		groups++
		line := append(slices.Clone(path), "no-such-word")
		if _, err := said(line...); err == nil {
			t.Errorf("culvert %s: no error", strings.Join(line, " "))
		}
		if out, err := said(path...); err != nil || !strings.Contains(out, "Available Commands:") {
			t.Errorf("culvert %s: %v, printed %q; it should print its help", strings.Join(path, " "), err, out)
		}
	}
	visit(root(), nil)
	if groups < 5 { // culvert, sa, policy, guard, completion
		t.Errorf("%d groups were tried", groups)
	}
}

// culvert help prints what --help prints.
func TestHelpCommand(t *testing.T) {
	for _, path := range [][]string{nil, {"guard"}, {"guard", "remove"}, {"help"}} {
		a, err := said(append([]string{"help"}, path...)...)
		if err != nil {
			t.Fatal(err)
		}
		b, err := said(append(slices.Clone(path), "--help")...)
		if err != nil {
			t.Fatal(err)
		}
		if a != b || a == "" {
			t.Errorf("help %v:\n%s\n--help:\n%s", path, a, b)
		}
	}
}
