package configs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// maxFile bounds a configuration: ten thousand tunnels with their comments fit, a wrong path to something huge does not.
const maxFile = 6 << 20

// Load reads, checks and resolves a configuration file, and the key files that it names. An error is an [Errors] with every
// mistake found. A file with keys in it must be readable by its owner only.
func Load(path string) (*Config, error) {
	data, st, err := readFile(path, maxFile)
	if err != nil {
		return nil, Errors{fileError(Pos{File: path}, "", "the configuration", path, err)}
	}
	return load(path, data, st)
}

// LoadBytes is Load for a configuration that is not in a file, or whose file the caller has read. name stands in the errors,
// and key files with relative paths are looked for in its directory. data is left as it is, and may be read by whomever.
func LoadBytes(name string, data []byte) (*Config, error) {
	return load(name, append([]byte(nil), data...), nil)
}

// loader carries what accumulates while a configuration is read.
type loader struct {
	file     string
	doc      *document
	errs     Errors
	warnings []Warning
	places   map[string]Pos
	known    map[string][]string // keys by table
	unknown  []unknownKey
	inline   int // offset of the first key that is written in the file itself, -1 if there is none
	keyUses  map[[32]byte]keyUse
	told     map[string]bool // how to mend what exposes key files
	noFiles  bool            // do not open key files
}

// load wipes data, which may hold keys, before it returns. st is the file's, nil if it does not matter.
func load(name string, data []byte, st fs.FileInfo) (*Config, error) {
	l := &loader{file: name}
	c := l.run(data)
	if l.inline >= 0 && st != nil {
		if p := exposed("the file holds keys", name, st); p != nil {
			l.fail(l.inline, "", p)
		}
	}
	if len(l.errs) == 0 {
		return c, nil
	}
	c.Wipe()
	return nil, l.errs.err()
}

// run reads the document into a Config, and what is wrong with it into the loader.
func (l *loader) run(data []byte) *Config {
	l.places, l.known, l.keyUses, l.inline = make(map[string]Pos), make(map[string][]string), make(map[[32]byte]keyUse), -1
	l.told = make(map[string]bool)
	var syntax []syntaxError
	l.doc, syntax = parse(l.file, data)
	defer l.doc.wipe()
	c := defaults(l.file)
	c.places = l.places
	for _, s := range syntax {
		l.fail(s.off, "", &problem{s.what, s.mend, ErrSyntax})
	}
	if len(syntax) > 0 {
		return c // the rest would be complaints about what could not be read
	}
	l.root(l.reader(l.doc.root, "", ""), c)
	if len(l.unknown) > 0 {
		l.reportUnknown(schema())
	}
	slices.SortStableFunc(l.warnings, func(a, b Warning) int { return comparePos(a.Pos, b.Pos) })
	c.Warnings = l.warnings
	return c
}

var (
	schemaOnce sync.Once
	schemaKeys map[string][]string
)

// schema returns the keys of every table, as reading a document with one of each table asks for them.
func schema() map[string][]string {
	schemaOnce.Do(func() {
		l := &loader{file: "schema", noFiles: true}
		l.run([]byte("[[tunnel]]\n[[policy]]\n"))
		schemaKeys = l.known
	})
	return schemaKeys
}

// readFile reads a regular file of at most limit bytes, into memory that it does not share and of which there is no copy.
func readFile(path string, limit int64) ([]byte, fs.FileInfo, error) {
	// Without O_NONBLOCK, opening a FIFO that nobody writes would wait for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil, errNotRegular
	}
	if st.Size() > limit {
		return nil, nil, errTooLong
	}
	data := make([]byte, st.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		clear(data)
		return nil, nil, err
	}
	return data, st, nil
}

var (
	errNotRegular = errors.New("it is not a regular file")
	errTooLong    = errors.New("it is too long to be one")
	errNoFiles    = errors.New("key files are not opened here")
)

// fileError says why a file could not be read. what names its part: "the configuration", "the key file". The path is not told
// if it is "", as that of a key file, in whose place the key itself may have been written.
func fileError(pos Pos, key, what, path string, err error) *Error {
	// A PathError would name the path again, shown or not.
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	e := &Error{Pos: pos, Key: key, Class: ErrRead, Cause: err}
	if path != "" {
		what += " " + show(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.What, e.Mend = what+" does not exist", "check the path, or create it"
	case errors.Is(err, fs.ErrPermission):
		e.What, e.Mend = fmt.Sprintf("%s may not be read by user %d", what, os.Geteuid()), "run culvert as the owner of the file"
	default:
		e.What, e.Mend = fmt.Sprintf("%s cannot be read: %v", what, err), "check the path"
	}
	return e
}

// shellWord quotes a path for a shell if it needs that.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
