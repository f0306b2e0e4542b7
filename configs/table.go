package configs

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// problem is what is wrong with one value and how to mend it; the reader adds the place.
type problem struct {
	what, mend string
	class      error
}

func bad(what, mend string) *problem { return &problem{what: what, mend: mend, class: ErrValue} }

// reader reads one table of the document. Every key is asked for by name exactly once; what nobody asked for by the time of
// done is unknown. So the keys that there are stand in one place, beside their types and bounds.
type reader struct {
	l     *loader
	t     *table
	path  string   // of this table, "" for the root
	shape string   // path without the names: "tunnel.out"
	asked []string // every key that this table may have

	written bool // for sub: the table is there, and is one
}

func (l *loader) reader(t *table, path, shape string) *reader {
	return &reader{l: l, t: t, path: path, shape: shape}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fail notes a mistake at an offset of the document.
func (l *loader) fail(off int, key string, p *problem) {
	l.errs = append(l.errs, &Error{Pos: l.doc.pos(off), Key: key, What: p.what, Mend: p.mend, Class: p.class})
}

// take returns the value of a key if it is there and of the wanted kind. A wrong kind is noted.
func (r *reader) take(name string, want ...kind) *value {
	r.asked = append(r.asked, name)
	e := r.t.get(name)
	if e == nil {
		return nil
	}
	key := join(r.path, name)
	r.l.places[key] = r.l.doc.pos(e.off)
	if slices.Contains(want, e.val.kind) {
		return e.val
	}
	r.l.fail(e.val.off, key, wrongKind(key, e.val.kind, want...))
	return nil
}

// wrongKind is the mistake of a value of kind is where one of the others is wanted.
func wrongKind(key string, is kind, want ...kind) *problem {
	names := make([]string, len(want))
	for i, k := range want {
		names[i] = k.String()
	}
	wanted := strings.Join(names, " or ")
	mend := "write " + wanted
	switch scalar := is != kindTable && is != kindArray; {
	case want[0] == kindString && scalar:
		mend = `write it in quotes: "…"`
	case want[0] == kindArray && is == kindString:
		mend = `write it in brackets: ["…"]`
	case want[0] == kindTable:
		mend = "begin it with a line [" + key + "]"
	}
	return &problem{"it is " + is.String() + ", not " + wanted, mend, ErrType}
}

// get reads a key into dst. An absent key leaves dst as it is, which is the default. The result says whether the key is there
// and good.
func get[T any](r *reader, name string, dst *T, want kind, conv func(v *value) (T, *problem)) bool {
	v := r.take(name, want)
	if v == nil {
		return false
	}
	x, p := conv(v)
	if p != nil {
		r.l.fail(v.off, join(r.path, name), p)
		return false
	}
	*dst = x
	return true
}

// has says whether a key is written, whatever its value.
func (r *reader) has(name string) bool { return r.t.get(name) != nil }

// require notes a mistake if a key is absent. An entry of the wrong type is a mistake already.
func (r *reader) require(name, mend string) {
	if !r.has(name) {
		r.l.fail(r.t.off, join(r.path, name), &problem{"it is missing", mend, ErrMissing})
	}
}

// at returns the place of a key's value, or of the table if the key is not written.
func (r *reader) at(name string) int {
	if e := r.t.get(name); e != nil {
		return e.val.off
	}
	return r.t.off
}

// fail notes a mistake in the value of a key.
func (r *reader) fail(name string, p *problem) { r.l.fail(r.at(name), join(r.path, name), p) }

func (r *reader) warn(name, format string, args ...any) {
	r.l.warnings = append(r.l.warnings, Warning{r.l.doc.pos(r.at(name)), join(r.path, name), fmt.Sprintf(format, args...)})
}

// str reads a string, which check may refuse (check may be nil).
func (r *reader) str(name string, dst *string, check func(string) *problem) bool {
	return get(r, name, dst, kindString, func(v *value) (string, *problem) {
		s := string(v.text)
		if check != nil {
			if p := check(s); p != nil {
				return "", p
			}
		}
		return s, nil
	})
}

func (r *reader) boolean(name string, dst *bool) bool {
	return get(r, name, dst, kindBool, func(v *value) (bool, *problem) { return string(v.text) == "true", nil })
}

// integer reads an integer of any width within bounds. unit is what it counts, for the error.
func integer[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](r *reader, name string, dst *T, lo, hi int64, unit string) bool {
	return get(r, name, dst, kindInteger, func(v *value) (T, *problem) {
		n, p := number(v, lo, hi, unit)
		return T(n), p
	})
}

func number(v *value, lo, hi int64, unit string) (int64, *problem) {
	n, err := strconv.ParseInt(strings.ReplaceAll(string(v.text), "_", ""), intBase(v.text), 64)
	if err == nil && n >= lo && n <= hi {
		return n, nil
	}
	if unit != "" {
		unit = " " + unit
	}
	what := "it is out of range"
	if err == nil {
		what = fmt.Sprintf("%d is out of range", n)
	}
	if hi == math.MaxInt64 {
		return 0, bad(what, fmt.Sprintf("write %d or more%s", lo, unit))
	}
	return 0, bad(what, fmt.Sprintf("write %d to %d%s", lo, hi, unit))
}

// intBase is 10 unless the number has a prefix: strconv's base 0 would take TOML's refused 010 for an octal number.
func intBase(text []byte) int {
	if len(text) > 1 && text[0] == '0' {
		return 0
	}
	return 10
}

// duration reads a Go duration, such as "90s" or "8h".
func (r *reader) duration(name string, dst *time.Duration, lo, hi time.Duration) bool {
	return get(r, name, dst, kindString, func(v *value) (time.Duration, *problem) {
		x, err := time.ParseDuration(string(v.text))
		if err != nil {
			return 0, bad(show(string(v.text))+" is not a duration", `write a number with its unit, such as "20s", "15m" or "8h"`)
		}
		if x != 0 && (x < lo || x > hi) {
			return 0, bad(fmt.Sprintf("%v is out of range", x), fmt.Sprintf(`write "0s" for none, or %v to %v`, lo, hi))
		}
		return x, nil
	})
}

// word reads one of a table's words. words is indexed by the value.
func word[T ~uint8](r *reader, name string, dst *T, words []string) bool {
	return get(r, name, dst, kindString, func(v *value) (T, *problem) {
		if i := slices.Index(words, string(v.text)); i >= 0 {
			return T(i), nil
		}
		return 0, notOneOf(string(v.text), words)
	})
}

func notOneOf(s string, words []string) *problem {
	mend := "write " + orList(words)
	if near := nearest(s, words); near != "" {
		mend = fmt.Sprintf("perhaps %q is meant; %s", near, mend)
	}
	return bad(show(s)+" is not known here", mend)
}

// orList is "a", "b" or "c".
func orList(words []string) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i > 0 && i == len(words)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Quote(w))
	}
	return b.String()
}

// address reads an address of a host: no zone, no IPv4 in IPv6's clothes, no multicast, not unspecified.
func (r *reader) address(name string, dst *netip.Addr) bool {
	return get(r, name, dst, kindString, func(v *value) (netip.Addr, *problem) {
		s := string(v.text)
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			return a, bad(show(s)+" is not an IP address", `write one such as "192.0.2.1" or "2001:db8::1", without a prefix length; names are not looked up`)
		case a.Zone() != "":
			return a, bad(show(s)+" has a zone", "use an address that is unique without one: link-local addresses cannot carry a tunnel")
		case a.Is4In6():
			return a, bad(show(s)+" is an IPv4 address in IPv6 form", "write "+strconv.Quote(a.Unmap().String()))
		case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			return a, bad(show(s)+" is not the address of one host", "write the address that packets of this tunnel carry")
		}
		return a, nil
	})
}

// network reads one prefix without host bits.
func network(v *value) (netip.Prefix, *problem) {
	s := string(v.text)
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return p, bad(show(s)+" has no prefix length", fmt.Sprintf(`write "%s/%d" for this address alone`, a, a.BitLen()))
		}
		return p, bad(show(s)+" is not a prefix", `write one such as "10.1.0.0/16" or "2001:db8:1::/48"`)
	}
	if p.Addr().Is4In6() {
		return p, bad(show(s)+" is an IPv4 prefix in IPv6 form", "write it as IPv4")
	}
	if p.Masked() != p {
		return p, bad(show(s)+" has bits set beyond its prefix length", "write "+strconv.Quote(p.Masked().String())+" for the network")
	}
	return p, nil
}

// interfaceAddress reads an address with the prefix length of its network, as an interface has it.
func interfaceAddress(v *value) (netip.Prefix, *problem) {
	s := string(v.text)
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, bad(show(s)+" is not an address with a prefix length", `write one such as "10.255.0.1/32"`)
	case p.Addr().Is4In6() || p.Addr().IsUnspecified() || p.Addr().IsMulticast():
		return p, bad(show(s)+" is not the address of one host", `write one such as "10.255.0.1/32"`)
	}
	return p, nil
}

// placed is a value from a list, with its place.
type placed[T any] struct {
	v   T
	off int
}

// list reads a list of strings, each through conv. Equal elements are refused.
func list[T comparable](r *reader, name string, conv func(v *value) (T, *problem)) []placed[T] {
	v := r.take(name, kindArray)
	if v == nil {
		return nil
	}
	key := join(r.path, name)
	var out []placed[T]
	seen := make(map[T]int)
	for i, item := range v.items {
		at := fmt.Sprintf("%s[%d]", key, i+1)
		if item.kind != kindString {
			r.l.fail(item.off, at, wrongKind(at, item.kind, kindString))
			continue
		}
		x, p := conv(item)
		if p != nil {
			r.l.fail(item.off, at, p)
			continue
		}
		if first, twice := seen[x]; twice {
			r.l.fail(item.off, at, &problem{fmt.Sprintf("%v is listed twice, first at %v", x, r.l.doc.pos(first)), "keep one of the two", ErrConflict})
			continue
		}
		seen[x] = item.off
		out = append(out, placed[T]{x, item.off})
	}
	return out
}

// sub returns the reader of a table within this one; of an empty one, at this table's place, if it is not written.
func (r *reader) sub(name string) *reader {
	s := r.l.reader(&table{off: r.t.off}, join(r.path, name), join(r.shape, name))
	if v := r.take(name, kindTable); v != nil {
		s.t, s.written = v.table, true
	}
	return s
}

// each returns the tables of an [[array]].
func (r *reader) each(name string) []*table {
	r.asked = append(r.asked, name)
	e := r.t.get(name)
	if e == nil {
		return nil
	}
	key := join(r.path, name)
	r.l.places[key] = r.l.doc.pos(e.off)
	wrong := &problem{"it is " + e.val.kind.String() + ", not a list of tables", "begin each with a line [[" + key + "]]", ErrType}
	if e.val.kind != kindArray {
		r.l.fail(e.val.off, key, wrong)
		return nil
	}
	var out []*table
	for _, item := range e.val.items {
		if item.kind != kindTable {
			wrong.what = "it holds " + item.kind.String() + ", not a table"
			r.l.fail(item.off, key, wrong)
			return nil
		}
		out = append(out, item.table)
	}
	return out
}

// done notes every key that nobody asked for.
func (r *reader) done() {
	r.l.known[r.shape] = r.asked
	for _, e := range r.t.entries {
		if !slices.Contains(r.asked, e.name) {
			r.l.unknown = append(r.l.unknown, unknownKey{r, e})
		}
	}
}

// unknownKey is a key that no reader asked for. It is reported when all keys of all tables are known, so that the error can
// say where the key belongs.
type unknownKey struct {
	r *reader
	e *entry
}

func (l *loader) reportUnknown(known map[string][]string) {
	for _, u := range l.unknown {
		what := "there is no key " + show(u.e.name)
		if u.e.val.kind == kindTable {
			what = "there is no table " + show(u.e.name)
		}
		if u.r.shape != "" {
			what += " in " + u.r.shape
		}
		mend := ""
		if near := nearest(u.e.name, u.r.asked); near != "" {
			mend = "perhaps " + near + " is meant"
		} else if homes := homesOf(u.e.name, known); len(homes) > 0 {
			mend = "it belongs in " + strings.Join(homes, " or ")
		} else {
			mend = "keys here: " + strings.Join(u.r.asked, ", ")
		}
		l.errs = append(l.errs, &Error{Pos: l.doc.pos(u.e.off), Key: join(u.r.path, hide(u.e.name)), What: what, Mend: mend, Class: ErrUnknown})
	}
}

// homesOf returns the tables that have a key of this name.
func homesOf(name string, known map[string][]string) []string {
	var homes []string
	for shape, keys := range known {
		if slices.Contains(keys, name) {
			switch shape {
			case "":
				shape = "the top of the file, before the first table"
			case "tunnel", "policy":
				shape = "[[" + shape + "]]"
			default:
				shape = "[" + shape + "]"
			}
			homes = append(homes, shape)
		}
	}
	slices.Sort(homes)
	return homes
}

// nearest returns the word that s was probably meant to be, "" if none is near: within a third of its length of edits.
func nearest(s string, words []string) string {
	if len(s) > 64 {
		return ""
	}
	s = strings.ToLower(s)
	best, limit := "", len(s)/3+1
	for _, w := range words {
		if n := edits(s, strings.ToLower(w)); w != "" && n < limit {
			best, limit = w, n
		}
	}
	return best
}

// edits counts the insertions, deletions, replacements and swaps of neighbours between two words.
func edits(a, b string) int {
	older, old, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range old {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old, row = old, row, older
	}
	return old[len(b)]
}

// Quote quotes a value of the configuration for a message, and cuts what is longer than a line.
func Quote(s string) string { return show(s) }

// show quotes a piece of the document for an error message; see hide.
func show(s string) string {
	if h := hide(s); h != s {
		return h
	}
	if len(s) > 64 {
		return strconv.Quote(s[:64]) + "…"
	}
	return strconv.Quote(s)
}

// hide returns s, or a description if s may be key material that stands in a wrong place: a key pasted where a name, a path
// or an address belongs must not reach a log through the error about it.
func hide(s string) string {
	if _, err := netip.ParseAddr(s); err == nil {
		return s
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		return s
	}
	digits, run := 0, 0
	for i := range len(s) {
		switch {
		case isHex(s[i]):
			run++
			digits = max(digits, run)
		case strings.IndexByte(":-_. \t\n\r", s[i]) < 0:
			run = 0
		}
	}
	if digits >= 16 {
		return fmt.Sprintf("(%d characters, not shown: they look like a key)", len(s))
	}
	return s
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
