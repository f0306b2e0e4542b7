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

// take returns the value of a key if it is there and of the wanted kind. A wrong kind is noted, with how to write it rightly.
func (r *reader) take(name, mend string, want ...kind) *value {
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
	r.l.fail(e.val.off, key, wrongKind(e.val.kind, mend, want...))
	return nil
}

// wrongKind is the mistake of a value of kind is where one of the others is wanted.
func wrongKind(is kind, mend string, want ...kind) *problem {
	names := make([]string, len(want))
	for i, k := range want {
		names[i] = k.String()
	}
	return &problem{"it is " + is.String() + ", not " + strings.Join(names, " or "), mend, ErrType}
}

// get reads a key into dst. An absent key leaves dst as it is, which is the default. The result says whether the key is there
// and good.
func get[T any](r *reader, name string, dst *T, mend string, want kind, conv func(v *value) (T, *problem)) bool {
	v := r.take(name, mend, want)
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

// str reads a string. check, which may be nil, says what is wrong with it, and mend how to write it rightly.
func (r *reader) str(name string, dst *string, mend string, check func(string) string) bool {
	return get(r, name, dst, mend, kindString, func(v *value) (string, *problem) {
		s := string(v.text)
		if check != nil {
			if what := check(s); what != "" {
				return "", bad(what, mend)
			}
		}
		return s, nil
	})
}

func (r *reader) boolean(name string, dst *bool) bool {
	return get(r, name, dst, "write true or false, without quotes", kindBool, func(v *value) (bool, *problem) { return string(v.text) == "true", nil })
}

// integer reads an integer of any width within bounds. unit is what it counts, for the error.
func integer[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](r *reader, name string, dst *T, lo, hi int64, unit string) bool {
	return integerMend(r, name, dst, lo, hi, bounds(lo, hi, unit))
}

// integerMend is integer with a text of its own on what can be written.
func integerMend[T ~int | ~uint8 | ~uint16 | ~uint32 | ~uint64](r *reader, name string, dst *T, lo, hi int64, mend string) bool {
	return get(r, name, dst, mend, kindInteger, func(v *value) (T, *problem) {
		n, p := number(v, lo, hi, mend)
		return T(n), p
	})
}

// bounds says in which range a number must be.
func bounds(lo, hi int64, unit string) string {
	if unit != "" {
		unit = " " + unit
	}
	if hi == math.MaxInt64 {
		return fmt.Sprintf("write %d or more%s", lo, unit)
	}
	return fmt.Sprintf("write %d to %d%s", lo, hi, unit)
}

// number converts an integer and checks its bounds, of which mend tells.
func number(v *value, lo, hi int64, mend string) (int64, *problem) {
	n, err := strconv.ParseInt(strings.ReplaceAll(string(v.text), "_", ""), intBase(v.text), 64)
	switch {
	case err != nil && len(v.text) > maxShown:
		return 0, bad("it is out of range", mend)
	case err != nil:
		return 0, bad(string(v.text)+" is out of range", mend)
	case n < lo || n > hi:
		return 0, bad(fmt.Sprintf("%d is out of range", n), mend)
	}
	return n, nil
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
	mend := fmt.Sprintf(`write a number with its unit, in quotes: "0s" for none, or "%s" to "%s"`, short(lo), short(hi))
	return get(r, name, dst, mend, kindString, func(v *value) (time.Duration, *problem) {
		x, err := time.ParseDuration(string(v.text))
		if err != nil {
			return 0, bad(show(string(v.text))+" is not a duration", mend)
		}
		if x != 0 && (x < lo || x > hi) {
			return 0, bad(short(x)+" is out of range", mend)
		}
		return x, nil
	})
}

// short is a duration without the zeros at its end: 1h for 1h0m0s.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// word reads one of a table's words. words is indexed by the value.
func word[T ~uint8](r *reader, name string, dst *T, words []string) bool {
	return get(r, name, dst, "write "+orList(words), kindString, func(v *value) (T, *problem) {
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

const addressMend = `write one such as "192.0.2.1" or "2001:db8::1", without a prefix length; names are not looked up`

// address reads an outer address: no zone, so not a link-local one of IPv6; no IPv4 in IPv6's clothes, no multicast, not
// unspecified.
func (r *reader) address(name string, dst *netip.Addr) bool {
	return get(r, name, dst, addressMend, kindString, func(v *value) (netip.Addr, *problem) {
		s := string(v.text)
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			return a, bad(show(s)+" is not an IP address", addressMend)
		case a.Zone() != "" || a.Is6() && a.IsLinkLocalUnicast():
			return a, bad(show(s)+" is good on one link only, and a tunnel's outer address has no zone that would say on which", `write a global or unique local address, such as "2001:db8::1" or "fd00::1"`)
		case a.Is4In6():
			return a, bad(show(s)+" is an IPv4 address in IPv6 form", "write "+strconv.Quote(a.Unmap().String()))
		case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			return a, bad(show(s)+" is not the address of one host", "write the address that packets of this tunnel carry")
		}
		return a, nil
	})
}

const networkMend = `write one such as "10.1.0.0/16" or "2001:db8:1::/48"`

// network reads one prefix without host bits.
func network(v *value) (netip.Prefix, *problem) {
	s := string(v.text)
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
			return p, bad(show(s)+" has no prefix length", fmt.Sprintf(`write "%s/%d" for this address alone`, a, a.BitLen()))
		}
		return p, bad(show(s)+" is not a prefix", networkMend)
	}
	if p.Addr().Is4In6() {
		mend := networkMend
		if p.Bits() >= 96 {
			mend = "write " + strconv.Quote(netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked().String())
		}
		return p, bad(show(s)+" is an IPv4 prefix in IPv6 form", mend)
	}
	if p.Masked() != p {
		return p, bad(show(s)+" has bits set beyond its prefix length", "write "+strconv.Quote(p.Masked().String())+" for the network")
	}
	return p, nil
}

// untunnelled are the addresses that never go through a tunnel: those of this host itself, those of one link, and groups. A
// shorter prefix that has some of them among others, such as 0.0.0.0/0, is good: the kernel keeps them out of it.
var untunnelled = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback addresses never leave a host"},
	{netip.MustParsePrefix("::1/128"), "the loopback address never leaves a host"},
	{netip.MustParsePrefix("224.0.0.0/4"), "it holds multicast groups, and tunnels carry unicast"},
	{netip.MustParsePrefix("ff00::/8"), "it holds multicast groups, and tunnels carry unicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast address is for one link only"},
	{netip.MustParsePrefix("fe80::/10"), "link-local addresses are good on one link only"},
}

// tunnelled refuses a prefix that no tunnel can carry.
func tunnelled(p netip.Prefix) *problem {
	for _, u := range untunnelled {
		if u.prefix.Bits() <= p.Bits() && u.prefix.Contains(p.Addr()) {
			return bad(p.String()+" cannot go through a tunnel: "+u.why, "write the networks behind the gateways, such as \"10.1.0.0/16\" or \"2001:db8:1::/48\"")
		}
	}
	return nil
}

// subnet reads one prefix that a tunnel can carry.
func subnet(v *value) (netip.Prefix, *problem) {
	p, problem := network(v)
	if problem == nil {
		problem = tunnelled(p)
	}
	return p, problem
}

const interfaceMend = `write an address with the prefix length of its network, such as "10.255.0.1/32"`

// interfaceAddress reads an address with the prefix length of its network, as an interface has it.
func interfaceAddress(v *value) (netip.Prefix, *problem) {
	s := string(v.text)
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() {
			return p, bad(show(s)+" has no prefix length", fmt.Sprintf(`write "%s/%d" for this address alone`, a, a.BitLen()))
		}
		return p, bad(show(s)+" is not an address with a prefix length", interfaceMend)
	}
	a := p.Addr()
	if a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
		return p, bad(show(s)+" is not the address of one host", interfaceMend)
	}
	// With one or no bit for hosts both addresses are (RFC 3021, RFC 6164).
	if hosts := a.BitLen() - p.Bits(); hosts >= 2 {
		mend := fmt.Sprintf(`write "%v/%d", or "%v/%d" for this address alone`, p.Masked().Addr().Next(), p.Bits(), a, a.BitLen())
		switch {
		case a == p.Masked().Addr() && a.Is4():
			return p, bad(show(s)+" is the network itself, and not a host in it", mend)
		case a == p.Masked().Addr():
			return p, bad(show(s)+" is the address of every router of the network (RFC 4291 section 2.6.1), and not a host in it", mend)
		case a.Is4() && !p.Contains(a.Next()):
			return p, bad(show(s)+" is the broadcast address of its network", mend)
		}
	}
	return p, nil
}

// placed is a value from a list, with its place.
type placed[T any] struct {
	v   T
	off int
}

// list reads a list of strings, each through conv. Equal elements are refused. example is an element.
func list[T comparable](r *reader, name, example string, conv func(v *value) (T, *problem)) []placed[T] {
	v := r.take(name, fmt.Sprintf("write a list in brackets: [%q]", example), kindArray)
	if v == nil {
		return nil
	}
	key := join(r.path, name)
	var out []placed[T]
	seen := make(map[T]int)
	for i, item := range v.items {
		at := fmt.Sprintf("%s[%d]", key, i+1)
		if item.kind != kindString {
			r.l.fail(item.off, at, wrongKind(item.kind, fmt.Sprintf("write it in quotes, such as %q", example), kindString))
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
	if v := r.take(name, fmt.Sprintf("write a line [%s] instead, and its keys below it", s.shape), kindTable); v != nil {
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
	wrong := &problem{"it is " + e.val.kind.String() + ", not a list of tables", "write a line [[" + key + "]] for each instead, and its keys below it", ErrType}
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
		what := "there is no key " + showName(u.e.name)
		if u.e.val.kind == kindTable {
			what = "there is no table " + showName(u.e.name)
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
		l.errs = append(l.errs, &Error{Pos: l.doc.pos(u.e.off), Key: join(u.r.path, nameOf(u.e.name)), What: what, Mend: mend, Class: ErrUnknown})
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

// maxShown is how much of a value a message shows, in bytes.
const maxShown = 64

// show quotes a value of the document for an error message. Values of settings that hold keys, or name their files, are never
// shown, whatever they look like; nor are others that look like a key, which may have been pasted there.
func show(s string) string {
	if looksLikeKey(s) {
		return fmt.Sprintf("what looks like a key (%d characters)", len(s))
	}
	if len(s) > maxShown {
		return strconv.Quote(s[:maxShown]) + "…"
	}
	return strconv.Quote(s)
}

// looksLikeKey reports whether s has the hexadecimal digits of 128 bits in a row, or is the base64 of as many.
func looksLikeKey(s string) bool {
	digits := 0
	var upper, lower, number bool
	base64 := len(s) >= 22 && s[0] != '/'
	for _, c := range []byte(s) {
		if isHex(c) {
			digits++
		} else {
			digits = 0
		}
		if digits == 32 {
			return true
		}
		switch {
		case c >= 'A' && c <= 'Z':
			upper = true
		case c >= 'a' && c <= 'z':
			lower = true
		case c >= '0' && c <= '9':
			number = true
		case c != '+' && c != '/' && c != '-' && c != '_' && c != '=':
			base64 = false
		}
	}
	return base64 && upper && lower && number
}

// maxName is longer than the name of any setting, and shorter than any key in hexadecimal digits.
const maxName = 24

// nameOf returns the name of a key of the document for a message, or a description if it is none that there could be: a key
// of an SA may have been pasted there.
func nameOf(s string) string {
	if len(s) > maxName {
		return fmt.Sprintf("(%d characters)", len(s))
	}
	return s
}

// showName is nameOf in quotes.
func showName(s string) string {
	if n := nameOf(s); n != s {
		return n
	}
	return strconv.Quote(s)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
