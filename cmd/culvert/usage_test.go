package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"culvert/configs"
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
		{"check a.toml", `"a.toml": a configuration has -c before it; write: culvert check -c a.toml`},
		{"guard show a.toml", `write: culvert guard show -c a.toml`},
		{"check -c a.toml b.toml", `culvert check takes no argument, and "b.toml" is one: leave it out; culvert check --help lists the flags`},
		{"status now please", `culvert status takes no arguments, and ["now" "please"] are some`},
		{"example a b", `culvert example takes one argument, and ["a" "b"] are 2; write: culvert example a`},
		{"reload --help", `there is no command "reload": a gateway reads its configuration again on SIGHUP: systemctl reload culvert`},
		{"reload", `systemctl reload culvert, or kill -HUP PID`},
		{"help stop", `there is no command "stop": a gateway stops on SIGTERM`},
		{"frobnicate --help", `unknown command "frobnicate" for "culvert": there are`},
		{"guard remov --help", `did you mean remove?`},
		{"guard reload", `unknown command "reload" for "culvert guard": there are remove, show`},
		{"demo --seconds abc", `--seconds "abc": write a number, such as --seconds=4; it is for: length of each measurement`},
		{"demo --wire=perhaps", `--wire "perhaps": write true or false, such as --wire=false`},
		{"speed --size a", `--size "a": write whole numbers with commas between them, such as --size=1024`},
		{"speed --time 5", `--time "5": write a time with its unit, such as --time=500ms`},
		{"speed --transform foo", `--transform "foo": there is none of this name; write one such as "rfc4106(gcm(aes))"`},
		{"speed --transform rfc4106(gcm(aes)", "perhaps rfc4106(gcm(aes)) is meant; `culvert engines` lists all; or write all"},
		{"demo --transform hmac(sha1),cbc(aes)", `perhaps authenc(hmac(sha1),cbc(aes)) is meant`},
		{"speed --transform rfc4106(gcm(aes)) --key-bits 100", `--key-bits 100: no such transform`},
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

// The version is told by the command as by the flag.
func TestVersion(t *testing.T) {
	a, err := said("version")
	if err != nil || !strings.HasPrefix(a, "culvert version ") {
		t.Errorf("%q, %v", a, err)
	}
	if b, err := said("--version"); err != nil || a != b {
		t.Errorf("--version prints %q, version %q (%v)", b, a, err)
	}
}

// What an error says to write instead is taken, whatever flag it is about.
func TestWrongValues(t *testing.T) {
	sample := regexp.MustCompile(`such as (--\S+); it is for: .`)
	tried := 0
	var visit func(c *cobra.Command, path []string)
	visit = func(c *cobra.Command, path []string) {
		for _, sub := range c.Commands() {
			visit(sub, append(slices.Clone(path), sub.Name()))
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Value.Type(), "string") {
				return // which are for the command to judge
			}
			tried++
			_, err := said(append(slices.Clone(path), "--"+f.Name+"=wrong")...)
			if err == nil {
				t.Errorf("%s --%s=wrong: no error", c.CommandPath(), f.Name)
				return
			}
			m := sample.FindStringSubmatch(err.Error())
			if m == nil || strings.Contains(err.Error(), "strconv") {
				t.Errorf("%s: %v", c.CommandPath(), err)
				return
			}
			if err := c.Flags().Parse([]string{m[1]}); err != nil {
				t.Errorf("%s does not take what it says itself: %v", c.CommandPath(), err)
			}
		})
	}
	visit(root(), nil)
	if tried < 15 {
		t.Errorf("%d flags were tried", tried)
	}
}

// Each of several errors begins with the program's name, their further lines are indented, and who lacks the right is told so.
func TestExplain(t *testing.T) {
	mistake := func(what string) *configs.Error {
		return &configs.Error{Pos: configs.Pos{File: "c.toml", Line: 1, Column: 2}, Key: "k", What: what, Class: configs.ErrValue}
	}
	denied := fmt.Errorf("delete the rule: %w", unix.EPERM)
	for _, c := range []struct {
		err  error
		user int
		want string
	}{
		{errors.New("one"), 0, "culvert: one\n"},
		{errors.Join(errors.New("one"), errors.Join(errors.New("two"), errors.New("three\nof which more\n      and more\n"))), 0,
			"culvert: one\nculvert: two\nculvert: three\n    of which more\n      and more\n"},
		{errors.Join(configs.Errors{mistake("a"), mistake("b")}, errors.New("hint")), 1000, "culvert: c.toml:1:2: k: a\nculvert: c.toml:1:2: k: b\nculvert: hint\n"},
		{fmt.Errorf("around: %w and %w", errors.New("one"), errors.New("two")), 0, "culvert: around: one and two\n"},
		{denied, 1000, "culvert: delete the rule: operation not permitted\n    run it as root, or with CAP_NET_ADMIN\n"},
		{denied, 0, "culvert: delete the rule: operation not permitted\n    root has no CAP_NET_ADMIN here: give it to the container (--cap-add NET_ADMIN), or run it outside\n"},
		{fmt.Errorf("run it as root: %w", unix.EPERM), 1000, "culvert: run it as root: operation not permitted\n"},
	} {
		if got := explain(c.err, c.user); got != c.want {
			t.Errorf("%v, user %d:\n%swant\n%s", c.err, c.user, got, c.want)
		}
	}
}
