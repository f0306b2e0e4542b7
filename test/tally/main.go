package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json` (go doc test2json), or of `go build -json` for what could not be built.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64 // s
}

// id names a test, or with an empty test its whole package.
type id struct{ pkg, test string }

func (i id) String() string {
	if i.test == "" {
		return i.pkg
	}
	return i.pkg + " " + i.test
}

// tally is what the logs say. A test that has subtests is not counted itself: its subtests are.
type tally struct {
	output   map[id][]string
	result   map[id]string
	parent   map[id]bool
	untested map[string]bool
	ran      map[string]bool    // packages of which at least one test ran
	took     map[string]float64 // s, by package
	rerun    string             // how tests were run, without -run and the package
}

func newTally() *tally {
	return &tally{
		output: map[id][]string{}, result: map[id]string{}, parent: map[id]bool{}, untested: map[string]bool{}, ran: map[string]bool{},
		took: map[string]float64{}, rerun: "go test -count=1",
	}
}

// read takes in one log. Lines that are not JSON are what the go command says of itself (a module being fetched), and are passed over.
func (t *tally) read(r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<20)
	events := 0
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 && line[0] == '{' {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("after %d events: %w", events, err)
			}
			events++
			t.add(e)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if events == 0 {
		return errors.New("there is no test event in it")
	}
	return nil
}

func (t *tally) add(e event) {
	i := id{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		t.output[id{pkg: e.ImportPath}] = append(t.output[id{pkg: e.ImportPath}], e.Output)
	case "build-fail":
		t.result[id{pkg: e.ImportPath}] = "fail"
	case "output":
		t.output[i] = append(t.output[i], e.Output)
		if e.Test == "" && strings.Contains(e.Output, "[no test files]") {
			t.untested[e.Package] = true
		}
	case "run":
		t.ran[e.Package] = true
		for up := e.Test; ; {
			cut := strings.LastIndexByte(up, '/')
			if cut < 0 {
				break
			}
			up = up[:cut]
			t.parent[id{e.Package, up}] = true
		}
	case "pass", "fail", "skip":
		t.result[i] = e.Action
		if e.Test == "" {
			t.took[e.Package] = e.Elapsed
		}
	}
}

// sorted gives the ids with that result that stand for themselves: tests without subtests, parents that failed although none
// of their subtests did, and packages that failed with no test of theirs to blame.
func (t *tally) sorted(result string) []id {
	blamed := map[id]bool{}
	for i, r := range t.result {
		if r != "fail" || i.test == "" {
			continue
		}
		for up := i.test; up != ""; {
			up = up[:max(0, strings.LastIndexByte(up, '/'))]
			blamed[id{i.pkg, up}] = true
		}
	}
	var out []id
	for i, r := range t.result {
		switch {
		case r != result, blamed[i]:
		case i.test == "" && r != "fail":
		case t.parent[i] && r != "fail":
		default:
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b id) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// reason is what a skipped test said.
func (t *tally) reason(i id) string {
	var said []string
	for _, line := range t.output[i] {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	if said == nil {
		return "it gave no reason"
	}
	return strings.Join(said, " ")
}

// empty lists the packages whose test files hold no test that ran (benchmarks and examples alone prove nothing).
func (t *tally) empty() []string {
	out := map[string]bool{}
	for pkg := range t.untested {
		out[pkg] = true
	}
	for i, r := range t.result {
		if i.test == "" && r == "pass" && !t.ran[i.pkg] {
			out[i.pkg] = true
		}
	}
	var names []string
	for pkg := range out {
		names = append(names, pkg)
	}
	slices.Sort(names)
	return names
}

const (
	tail     = 60   // lines of a failed test's output
	slowFrom = 10.0 // s that a package took, for it to be listed
)

// slow lists the packages that took long, the longest first.
func (t *tally) slow() (names []string) {
	for pkg, s := range t.took {
		if s >= slowFrom {
			names = append(names, pkg)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.took[b], t.took[a]), strings.Compare(a, b))
	})
	return names
}

// seeds are what tests say of the randomness that they failed with: rapid's flags, which go behind the package.
var seeds = regexp.MustCompile(`-rapid\.(?:seed|failfile)=[^\s"]+`)

// again is the command that runs a failed test again, with the randomness that it failed with where the test says so. A fuzz test's
// failing input is a test by its name.
func (t *tally) again(i id) string {
	words := []string{t.rerun}
	if i.test != "" {
		var levels []string
		for _, level := range strings.Split(i.test, "/") {
			levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
		}
		words = append(words, "-run '"+strings.ReplaceAll(strings.Join(levels, "/"), "'", `'\''`)+"'")
	}
	words = append(words, i.pkg)
	for _, line := range t.output[i] {
		for _, seed := range seeds.FindAllString(line, -1) {
			if !slices.Contains(words, seed) {
				words = append(words, seed)
			}
		}
	}
	return strings.Join(words, " ")
}

// report writes the findings to w and tells whether they are good.
func (t *tally) report(w io.Writer, allowSkips bool) bool {
	passed, failed, skipped := t.sorted("pass"), t.sorted("fail"), t.sorted("skip")
	for _, i := range failed {
		fmt.Fprintf(w, "FAILED %s\n", i)
		said := t.output[i]
		if left := len(said) - tail; left > 0 {
			fmt.Fprintf(w, "    … %d lines before\n", left)
			said = said[left:]
		}
		for _, line := range said {
			fmt.Fprintf(w, "    %s", line)
		}
		// What the package printed outside a test says why it died.
		if i.test != "" {
			for _, line := range t.output[id{pkg: i.pkg}] {
				if strings.Contains(line, "panic:") || strings.Contains(line, "fatal error:") {
					fmt.Fprintf(w, "    %s", line)
				}
			}
		}
		fmt.Fprintf(w, "    to run it again: %s\n", t.again(i))
	}
	for _, i := range skipped {
		fmt.Fprintf(w, "SKIPPED %s: %s\n", i, t.reason(i))
	}
	empty := t.empty()
	for _, pkg := range empty {
		fmt.Fprintf(w, "UNTESTED %s: no test of its own ran\n", pkg)
	}
	for _, pkg := range t.slow() {
		fmt.Fprintf(w, "%6.1f s  %s\n", t.took[pkg], pkg)
	}
	bad := len(failed) + len(empty)
	fmt.Fprintf(w, "passed %d failed %d skipped %d\n", len(passed), bad, len(skipped))
	return bad == 0 && (allowSkips || len(skipped) == 0) && len(passed) > 0
}

func main() {
	allowSkips := flag.Bool("allow-skips", false, "a skipped test is listed, and is not a failure")
	t := newTally()
	flag.StringVar(&t.rerun, "rerun", t.rerun, "the `command` that ran the tests, without -run and packages")
	flag.Parse()
	for _, name := range flag.Args() {
		f, err := os.Open(name)
		if err == nil {
			err = t.read(f)
			f.Close()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "tally: %s: %v\n", name, err)
			os.Exit(2)
		}
	}
	if !t.report(os.Stdout, *allowSkips) {
		os.Exit(1)
	}
}
