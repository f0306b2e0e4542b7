package speed

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// style is how a table is printed.
type style struct {
	reference bool // Mbit/s, with the published figure beside it
	sweep     bool // sizes as columns, after the rows
}

// column is one of a table's.
type column struct {
	head string
	left bool
	cell func(r *row) string
}

func fixed(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

// figure prints a throughput with three digits that mean something.
func figure(v float64) string {
	switch {
	case v <= 0:
		return "-"
	case v >= 100:
		return fixed(v, 0)
	case v >= 10:
		return fixed(v, 1)
	case v >= 0.1:
		return fixed(v, 2)
	default:
		return fixed(v, 4)
	}
}

// result prints what a row claims: in parentheses if it cannot be.
func (r *row) result(v string) string {
	if anyImpossible(r.flags) && v != "-" {
		return "(" + v + ")"
	}
	return v
}

func (r *row) cycles() string {
	if r.CyclesPerByte == nil {
		return "-"
	}
	return r.result(fixed(*r.CyclesPerByte, 2))
}

// columns are the table's; unit is 1 for Gbit/s and 1000 for Mbit/s.
func (s style) columns() []column {
	unit, name := 1.0, "Gbit"
	if s.reference {
		unit, name = 1000, "Mbit"
	}
	cols := []column{
		{"transform", true, func(r *row) string { return r.Transform }},
		{"key", false, func(r *row) string { return strconv.Itoa(r.KeyBits) }},
		{"direction", true, func(r *row) string { return r.Direction }},
		{"bytes", false, func(r *row) string { return strconv.Itoa(r.Size) }},
		{"engine", true, func(r *row) string { return r.Engine }},
		{"level", true, func(r *row) string { return orDash(r.CPULevel) }},
		{"packets", false, func(r *row) string { return strconv.FormatInt(r.Ops, 10) }},
		{"wall s", false, func(r *row) string { return fixed(r.WallS, 3) }},
		{"CPU s", false, func(r *row) string { return fixed(r.CPUS, 3) }},
		{name + "/s", false, func(r *row) string { return r.result(figure(r.Gbps * unit)) }},
		{"median", false, func(r *row) string { return r.result(figure(r.median * unit)) }},
		{name + "/CPU s", false, func(r *row) string { return r.result(figure(r.GbpsPerCPUS * unit)) }},
		{"cycles/byte", false, (*row).cycles},
		{"laying", false, func(r *row) string {
			if r.Direction == "seal" {
				return "-"
			}
			return fixed(100*r.copies, 0) + " %"
		}},
	}
	if s.reference {
		cols = append(cols,
			column{"C2558 Mbit/s", false, func(r *row) string { return r.published(fixed(r.ref.mbps, 0)) }},
			column{"recomputed", false, func(r *row) string { return r.published(fixed(r.ref.recompute(), 1)) }},
			column{"times", false, func(r *row) string { return r.times(r.Gbps) }},
			column{"per CPU s", false, func(r *row) string { return r.times(r.GbpsPerCPUS) }},
		)
	}
	return cols
}

// published prints a figure of the report: in parentheses if the report contradicts itself.
func (r *row) published(v string) string {
	if len(r.ref.check()) > 0 {
		return "(" + v + ")"
	}
	return v
}

// times is how many times the published figure a row's is, if both are good.
func (r *row) times(gbps float64) string {
	if anyImpossible(r.flags) || len(r.ref.check()) > 0 {
		return "-"
	}
	return fixed(gbps*1000/r.ref.recompute(), 2)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// print writes the table, its remarks, and with sweep the columns.
func (s style) print(w io.Writer, rows []*row) {
	cols := s.columns()
	lines := make([][]string, 0, len(rows)+1)
	head := make([]string, 0, len(cols)+1)
	for _, c := range cols {
		head = append(head, c.head)
	}
	lines = append(lines, append(head, ""))
	var remarks []string
	waited := false
	for _, r := range rows {
		line := make([]string, 0, len(cols)+1)
		for _, c := range cols {
			line = append(line, c.cell(r))
		}
		marks := ""
		flags := r.flags
		if s.reference {
			flags = append(flags[:len(flags):len(flags)], r.ref.check()...)
		}
		for _, f := range flags {
			if f.mark != "" {
				marks += "[" + f.mark + "]"
				waited = true
				continue
			}
			remarks = append(remarks, f.String())
			marks += fmt.Sprintf("[%d]", len(remarks))
		}
		lines = append(lines, append(line, marks))
	}
	align(w, lines, func(i int) bool { return i == len(cols) || cols[i].left })
	if waited || len(remarks) > 0 {
		fmt.Fprintln(w)
	}
	if waited {
		fmt.Fprintln(w, "[waited] for a processor, that share of the time: the figure by wall time is the busy machine's, the one by CPU time is good")
	}
	for i, text := range remarks {
		fmt.Fprintf(w, "[%d] %s\n", i+1, text)
	}
	if s.sweep {
		printColumns(w, rows)
	}
}

// align prints lines in columns.
func align(w io.Writer, lines [][]string, left func(column int) bool) {
	width := map[int]int{}
	for _, l := range lines {
		for i, c := range l {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, l := range lines {
		var b strings.Builder
		for i, c := range l {
			if i > 0 {
				b.WriteString("  ")
			}
			space := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if left(i) {
				b.WriteString(c + space)
			} else {
				b.WriteString(space + c)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// printColumns prints rows as `openssl speed` does, by each of the two clocks. A row that cannot be has no number.
func printColumns(w io.Writer, rows []*row) {
	for _, by := range []struct {
		clock string
		gbps  func(r *row) float64
	}{
		{"second of wall time", func(r *row) float64 { return r.Gbps }},
		{"second of processor time", func(r *row) float64 { return r.GbpsPerCPUS }},
	} {
		fmt.Fprintf(w, "\nThe 'numbers' are in 1000s of bytes per %s.\n", by.clock)
		head := []string{"type"}
		var sizes []int
		for _, size := range sweepSizes {
			head = append(head, fmt.Sprintf("%d bytes", size))
			sizes = append(sizes, size)
		}
		lines := [][]string{head}
		var of string
		for _, r := range rows {
			name := fmt.Sprintf("%s %d %s, %s", r.Transform, r.KeyBits, r.Direction, r.Engine)
			if r.CPULevel != "" {
				name += " (" + r.CPULevel + ")"
			}
			if name != of {
				line := []string{name}
				for range sizes {
					line = append(line, "-")
				}
				lines, of = append(lines, line), name
			}
			for i, size := range sizes {
				if r.Size == size && !anyImpossible(r.flags) {
					lines[len(lines)-1][i+1] = fixed(by.gbps(r)*1e6/8, 2) + "k"
				}
			}
		}
		align(w, lines, func(i int) bool { return i == 0 })
	}
}
