package configs

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// kind is what a value is in TOML's terms.
type kind uint8

const (
	kindString kind = iota
	kindInteger
	kindFloat
	kindBool
	kindTime
	kindArray
	kindTable
)

// kindNames says each kind with its article, as error messages need it.
var kindNames = [...]string{
	kindString:  "a string",
	kindInteger: "an integer",
	kindFloat:   "a number with a fraction",
	kindBool:    "true or false",
	kindTime:    "a date or time",
	kindArray:   "a list",
	kindTable:   "a table",
}

func (k kind) String() string { return kindNames[k] }

// value is one value of the document and where it stands.
type value struct {
	kind  kind
	off   int      // of its first byte
	text  []byte   // strings: the content; numbers, booleans, times: as written. May lie in the document: wiped with it
	items []*value // arrays
	table *table   // tables
}

// origin is how a table or an array came to be; TOML's rules on what may be added to it depend on that.
type origin uint8

const (
	byValue   origin = iota // key = …: closed
	byDots                  // a.b = …: open to further dotted keys and to [headers] below it
	byPath                  // the a of [a.b]: may still get a [header] of its own
	byHeader                // [a]: may not be opened twice
	byElement               // [[a]]: grows with every further [[a]]
)

// entry is one key of a table.
type entry struct {
	name string
	off  int // of the key
	val  *value
	from origin
}

// table holds its entries in the order of the file.
type table struct {
	off     int // of the header, or of the brace, or of the first dotted key
	entries []*entry
	index   map[string]*entry
}

func (t *table) get(name string) *entry { return t.index[name] }

func (t *table) add(e *entry) *entry {
	if t.index == nil {
		t.index = make(map[string]*entry)
	}
	t.index[e.name] = e
	t.entries = append(t.entries, e)
	return e
}

// document is a parsed TOML file with the position of everything in it. go-toml's decoder knows positions only until the
// value is decoded and stops at the first mistake; a gateway's configuration is worth reading to its end, so the document is
// built from the same parser's expressions, and what its decoder would refuse (keys twice, tables twice) is refused here.
type document struct {
	file  string
	data  []byte
	lines []int // offset of each line's first byte
	root  *table
	wipes [][]byte // decoded strings that do not lie in data
}

// syntaxError is a mistake in the form of the document.
type syntaxError struct {
	off        int
	what, mend string
}

// unprintable matches the tail of go-toml's messages that quotes the document. It is cut off: the document holds keys.
var unprintable = regexp.MustCompile(`(?: but got|:) U\+.*$`)

// parse reads a whole document. It returns every key that is defined twice, and the first place where the text is not TOML;
// after that nothing can be said about the rest. The document keeps data and wipes it in wipe.
func parse(file string, data []byte) (*document, []syntaxError) {
	d := &document{file: file, data: data, lines: []int{0}, root: &table{}}
	for i, c := range data {
		if c == '\n' {
			d.lines = append(d.lines, i+1)
		}
	}
	var errs []syntaxError
	var p unstable.Parser
	p.Reset(data)
	current := d.root // nil after a header that was refused: its keys have no place to go
	for p.NextExpression() {
		n := p.Expression()
		var err *syntaxError
		switch n.Kind {
		case unstable.KeyValue:
			if current != nil {
				err = d.keyValue(current, n)
			}
		case unstable.Table, unstable.ArrayTable:
			current, err = d.header(n)
		}
		if err != nil {
			errs = append(errs, *err)
		}
	}
	if err := p.Error(); err != nil {
		errs = append(errs, d.parserError(err))
	}
	return d, errs
}

func (d *document) parserError(err error) syntaxError {
	var pe *unstable.ParserError
	if !errors.As(err, &pe) {
		return syntaxError{off: len(d.data), what: "cannot be read as TOML"}
	}
	off := d.offset(pe.Highlight)
	s := syntaxError{off: off, what: unprintable.ReplaceAllString(pe.Message, "")}
	if off == 0 && bytes.HasPrefix(d.data, []byte("\xef\xbb\xbf")) {
		s.what, s.mend = "the file begins with a byte order mark", "save it as UTF-8 without one"
		return s
	}
	s.mend = "compare the line with an example: `culvert example`"
	for _, m := range syntaxMends {
		if strings.Contains(s.what, m.part) {
			s.mend = m.mend
			break
		}
	}
	if off < len(d.data) && d.data[off] == '\r' {
		s.mend = "end lines with a line feed, with or without a carriage return before it"
		return s
	}
	if d.unquoted(off) {
		s.mend = `if the value is a string, write quotes around it: "…"; otherwise ` + s.mend
	}
	return s
}

// syntaxMends says how to mend what go-toml's parser refuses, by a part of its message. The first that fits counts.
var syntaxMends = []struct{ part, mend string }{
	{"multiline literal string not terminated", "end it with three single quotes"},
	{"too many quotes", "end the string with three quotes"},
	{"control characters", `remove the character, or write it as an escape in double quotes, such as "\t"`},
	{"UTF-8", "save the file as UTF-8"},
	{"new lines", "end the string on its line, with the quote that it begins with"},
	{"not terminated", "end the string with three double quotes"},
	{"unterminated", "end the string with the quote, or the three of them, that it begins with"},
	{"carriage return", "end lines with a line feed, with or without a carriage return before it"},
	{"escape", "write a backslash as \\\\, or the string in single quotes, where it is itself"},
	{"array is incomplete", "end the list with ]"},
	{"after array value", "write a comma between the elements of the list, and ] at its end"},
	{"inline table is incomplete", "end the table with }"},
	{"inline table", "write a comma between the settings of the table, one and no more, and } at its end"},
	{"'=' after key", "write the setting as key = value; a comment begins with #"},
	{"to close table name", "write the name of a table as [name]"},
	{"to close array table name", "write the name of a list of tables as [[name]]"},
	{"nested more", "nest it less deeply"},
	{"leading zeroes", "write the number without zeros before it"},
	{"expected newline", "begin a new line after the value; a comment begins with #"},
	{"expected keyword", "write true or false; anything else in quotes"},
	{"expected value", "write a value after the ="},
	{"start of value", "write a number, true, false, a list in brackets or a string in quotes"},
	{"strings must be quoted", `write quotes around it: "…"`},
	{"key", "write the setting as key = value, the key in letters, digits, _ and -; a comment begins with #"},
	{"digit", "write a whole number, such as 10, 0x1f or 1_000"},
	{"sign", "write a whole number, such as 10, 0x1f or 1_000"},
	{"number", "write a whole number, such as 10, 0x1f or 1_000"},
}

// unquoted says whether the line of a mistake is key = value with something before the mistake that begins neither a string
// nor a list nor a table.
func (d *document) unquoted(off int) bool {
	line := d.data[d.lines[d.pos(off).Line-1]:off]
	_, v, found := bytes.Cut(line, []byte("="))
	v = bytes.TrimSpace(v)
	return found && (len(v) == 0 || bytes.IndexByte([]byte("\"'[{"), v[0]) < 0)
}

// offset returns where a part of the document lies in it. A part shares the document's array, so that its capacity says
// where it begins; an empty part at the end of the document is moved onto its last byte.
func (d *document) offset(part []byte) int {
	off := cap(d.data) - cap(part)
	if off < 0 || off > len(d.data) {
		off = len(d.data)
	}
	if off == len(d.data) && off > 0 {
		off--
	}
	return off
}

// holds says whether b lies in the document itself; a string with escapes is decoded into memory of its own.
func (d *document) holds(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	off := cap(d.data) - cap(b)
	return off >= 0 && off < len(d.data) && &d.data[off] == &b[0]
}

// pos turns an offset into a position.
func (d *document) pos(off int) Pos {
	line, found := slices.BinarySearch(d.lines, off)
	if !found {
		line--
	}
	return Pos{File: d.file, Line: line + 1, Column: off - d.lines[line] + 1}
}

// wipe overwrites the document, which may hold keys. Nothing that was read from it may refer to it any more.
func (d *document) wipe() {
	clear(d.data)
	for _, w := range d.wipes {
		clear(w)
	}
}

// namePart is one part of a dotted key.
type namePart struct {
	name string
	off  int
}

func nameParts(n *unstable.Node) []namePart {
	var parts []namePart
	for it := n.Key(); it.Next(); {
		k := it.Node()
		parts = append(parts, namePart{string(k.Data), int(k.Raw.Offset)})
	}
	return parts
}

func (d *document) twice(off int, name string, first *entry) *syntaxError {
	mend := "keep one of the two"
	if first.val.kind == kindTable {
		mend = "write all of it below one header, and remove the other"
	}
	return &syntaxError{off: off, what: showName(name) + " is defined twice, first at " + d.pos(first.off).String(), mend: mend}
}

// header opens the table of a [header] or [[header]].
func (d *document) header(n *unstable.Node) (*table, *syntaxError) {
	t := d.root
	parts := nameParts(n)
	for _, k := range parts[:len(parts)-1] {
		e := t.get(k.name)
		if e == nil {
			e = t.add(&entry{name: k.name, off: k.off, val: tableValue(k.off), from: byPath})
		}
		switch {
		case e.from == byElement:
			t = e.val.items[len(e.val.items)-1].table
		case e.from != byValue:
			t = e.val.table
		default:
			return nil, d.twice(k.off, k.name, e)
		}
	}
	k := parts[len(parts)-1]
	e := t.get(k.name)
	switch {
	case n.Kind == unstable.ArrayTable && e == nil:
		e = t.add(&entry{name: k.name, off: k.off, val: &value{kind: kindArray, off: k.off}, from: byElement})
		fallthrough
	case n.Kind == unstable.ArrayTable && e.from == byElement:
		v := tableValue(k.off)
		e.val.items = append(e.val.items, v)
		return v.table, nil
	case n.Kind == unstable.Table && e == nil:
		e = t.add(&entry{name: k.name, off: k.off, val: tableValue(k.off), from: byHeader})
		return e.val.table, nil
	case n.Kind == unstable.Table && e.from == byPath:
		e.from = byHeader
		e.off, e.val.off, e.val.table.off = k.off, k.off, k.off
		return e.val.table, nil
	}
	return nil, d.twice(k.off, k.name, e)
}

func tableValue(off int) *value { return &value{kind: kindTable, off: off, table: &table{off: off}} }

// keyValue adds one key = value to a table, or to the table that the key's dots lead to.
func (d *document) keyValue(t *table, n *unstable.Node) *syntaxError {
	parts := nameParts(n)
	for _, k := range parts[:len(parts)-1] {
		e := t.get(k.name)
		if e == nil {
			e = t.add(&entry{name: k.name, off: k.off, val: tableValue(k.off), from: byDots})
		} else if e.from != byDots {
			return d.twice(k.off, k.name, e)
		}
		t = e.val.table
	}
	k := parts[len(parts)-1]
	if first := t.get(k.name); first != nil {
		return d.twice(k.off, k.name, first)
	}
	v, err := d.value(n.Value(), d.valueStart(n))
	if err != nil {
		return err
	}
	t.add(&entry{name: k.name, off: k.off, val: v, from: byValue})
	return nil
}

// valueStart returns where the value of a key = value begins. The parser notes it for scalars only.
func (d *document) valueStart(n *unstable.Node) int {
	off := 0
	for it := n.Key(); it.Next(); {
		raw := it.Node().Raw
		off = int(raw.Offset + raw.Length)
	}
	for off < len(d.data)-1 && bytes.IndexByte([]byte(" \t="), d.data[off]) >= 0 {
		off++
	}
	return off
}

// value converts one value. start is where it begins, for the kinds for which the parser does not note it.
func (d *document) value(n *unstable.Node, start int) (*value, *syntaxError) {
	v := &value{off: start, text: n.Data}
	if n.Raw.Length > 0 {
		v.off = int(n.Raw.Offset)
	}
	switch n.Kind {
	case unstable.String:
		v.kind = kindString
		if !d.holds(n.Data) {
			d.wipes = append(d.wipes, n.Data)
		}
	case unstable.Integer:
		v.kind = kindInteger
	case unstable.Float:
		v.kind = kindFloat
	case unstable.Bool:
		v.kind = kindBool
	case unstable.Array:
		v.kind = kindArray
		for it := n.Children(); it.Next(); {
			item, err := d.value(it.Node(), start)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
	case unstable.InlineTable:
		v.kind, v.table = kindTable, &table{off: v.off}
		for it := n.Children(); it.Next(); {
			if err := d.keyValue(v.table, it.Node()); err != nil {
				return nil, err
			}
		}
	default:
		v.kind = kindTime
	}
	return v, nil
}
