package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func lines(events ...event) string {
	var b strings.Builder
	b.WriteString("go: downloading something\n")
	for _, e := range events {
		j, err := json.Marshal(e)
		if err != nil {
			panic(err)
		}
		b.Write(j)
		b.WriteByte('\n')
	}
	return b.String()
}

// Subtests are counted instead of their parents; failures, skips with their reasons and packages without tests are named; and any
// of the three makes the verdict bad.
func TestReport(t *testing.T) {
	run := func(pkg, test, action string, output ...string) []event {
		out := []event{{Action: "run", Package: pkg, Test: test}}
		for _, o := range output {
			out = append(out, event{Action: "output", Package: pkg, Test: test, Output: o + "\n"})
		}
		return append(out, event{Action: action, Package: pkg, Test: test})
	}
	good := append(append(run("a", "TestX", "pass"), run("a", "TestX/one", "pass")...), run("a", "TestX/two", "pass")...)
	good = append(good, event{Action: "pass", Package: "a"})
	for _, c := range []struct {
		name       string
		events     []event
		allowSkips bool
		ok         bool
		want       []string
	}{
		{"all pass", good, false, true, []string{"passed 2 failed 0 skipped 0"}},
		{"one fails", append(append(run("b", "TestY", "fail"), run("b", "TestY/z", "fail", "it broke")...), event{Action: "fail", Package: "b"}),
			false, false, []string{"FAILED b TestY/z", "it broke", "passed 0 failed 1 skipped 0"}},
		{"parent fails alone", append(append(run("b", "TestY", "fail", "after them"), run("b", "TestY/z", "pass")...), event{Action: "fail", Package: "b"}),
			false, false, []string{"FAILED b TestY\n", "after them", "passed 1 failed 1"}},
		{"package dies", append(append([]event{}, good...), event{Action: "output", Package: "c", Output: "panic: no\n"}, event{Action: "fail", Package: "c"}),
			false, false, []string{"FAILED c\n", "panic: no", "passed 2 failed 1"}},
		{"does not build", append(append([]event{}, good...), event{Action: "build-output", ImportPath: "c", Output: "c.go:1: bad\n"}, event{Action: "build-fail", ImportPath: "c"}),
			false, false, []string{"FAILED c\n", "c.go:1: bad"}},
		{"skip", append(run("a", "TestS", "skip", "=== RUN   TestS", "    s_test.go:3: no /dev/x"), good...),
			false, false, []string{"SKIPPED a TestS: s_test.go:3: no /dev/x", "passed 2 failed 0 skipped 1"}},
		{"skip allowed", append(run("a", "TestS", "skip", "why"), good...), true, true, []string{"SKIPPED a TestS: why"}},
		{"no test files", append(append([]event{}, good...), event{Action: "output", Package: "d", Output: "?   \td\t[no test files]\n"}, event{Action: "skip", Package: "d"}),
			false, false, []string{"UNTESTED d", "passed 2 failed 1"}},
		{"benchmarks only", append(append([]event{}, good...), event{Action: "output", Package: "e", Output: "PASS\n"}, event{Action: "pass", Package: "e"}),
			false, false, []string{"UNTESTED e"}},
		{"again", append(append(run("b", "TestY", "fail"), run("b", "TestY/it's_a+b", "fail", `    To reproduce, specify -run="TestY" -rapid.seed=42 (or -rapid.failfile="testdata/x")`)...), event{Action: "fail", Package: "b"}),
			false, false, []string{`to run it again: go test -count=1 -run '^TestY$/^it'\''s_a\+b$' b -rapid.seed=42` + "\n"}},
		{"long output", run("b", "TestL", "fail", strings.Split("first\n"+strings.Repeat("line\n", tail)+"last", "\n")...),
			false, false, []string{"… 2 lines before\n    line\n", "    last\n    to run it again: go test -count=1 -run '^TestL$' b\n"}},
		{"slow", append([]event{{Action: "pass", Package: "a", Elapsed: 12.34}, {Action: "pass", Package: "quick", Elapsed: 9}, {Action: "pass", Package: "c", Elapsed: 99}}, append(run("a", "TestA", "pass"), append(run("c", "TestC", "pass"), run("quick", "TestQ", "pass")...)...)...),
			false, true, []string{"  99.0 s  c\n  12.3 s  a\npassed 3"}},
		{"nothing ran", []event{{Action: "start", Package: "a"}}, false, false, []string{"passed 0 failed 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ta := newTally()
			if err := ta.read(strings.NewReader(lines(c.events...))); err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if ok := ta.report(&b, c.allowSkips); ok != c.ok {
				t.Errorf("verdict %v, want %v", ok, c.ok)
			}
			for _, w := range c.want {
				if !strings.Contains(b.String(), w) {
					t.Errorf("the report lacks %q:\n%s", w, b.String())
				}
			}
		})
	}
}

// A log that holds no event, or a broken one, is an error and not a good result.
func TestUnreadable(t *testing.T) {
	for _, log := range []string{"", "nothing\n", "{\"Action\":\n"} {
		if err := newTally().read(strings.NewReader(log)); err == nil {
			t.Errorf("%q was taken for a log", log)
		}
	}
}
