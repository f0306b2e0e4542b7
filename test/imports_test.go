package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "culvert"

// ours is the import table: what a package may import of this module, by the longest matching folder. A folder stands for itself
// and all below it, one with a final "/." for itself alone. A package may always import what is below itself, but for offload,
// whose engines register with it and not the other way round.
var ours = []struct {
	folder string
	may    []string
}{
	{"offload/.", nil},
	{"offload", []string{"offload/."}},
	{"sa", []string{"offload/."}},
	{"xfrm", []string{"sa", "offload/.", "xfrm"}},
	{"dataplane", []string{"offload/.", "sa", "dataplane"}},
	{"dataplane/link", []string{"dataplane/link"}},
	{"configs", []string{"sa", "offload/."}},
	{"cmd", []string{"."}},
	{"test", []string{"."}},
}

// inTests is what the test files of a folder may import beyond that: engines to seal with, and the doubles that are packages.
var inTests = map[string][]string{
	"offload":   {"offload"},
	"sa":        {"offload"},
	"xfrm":      {"offload"},
	"dataplane": {"offload"},
	"configs":   {"offload"},
}

// theirs lists every module we take from others, and the folders that may import it; "_test" stands for any test file. A library
// that is not listed is not to be imported: adding one is a decision, made here.
var theirs = []struct {
	prefix string
	may    []string
}{
	{"github.com/HdrHistogram/hdrhistogram-go", []string{"dataplane", "cmd", "test"}},
	{"github.com/cilium/ebpf", []string{"dataplane/link"}},
	{"github.com/coreos/go-systemd/v22", []string{"cmd"}},
	{"github.com/gaissmai/bart", []string{"sa", "configs"}},
	{"github.com/google/go-cmp", []string{"_test"}},
	{"github.com/google/gopacket", []string{"dataplane/link/pcaplink", "cmd", "test", "_test"}},
	{"github.com/pelletier/go-toml/v2", []string{"configs"}},
	{"github.com/prometheus/client_golang", []string{"cmd"}},
	{"github.com/prometheus/client_model", []string{"_test"}},
	{"github.com/prometheus/common", []string{"_test"}},
	{"github.com/spf13/cobra", []string{"cmd"}},
	{"github.com/spf13/pflag", []string{"cmd"}},
	{"github.com/vishvananda/netlink", []string{"xfrm", "dataplane/link", "cmd", "test"}},
	{"github.com/vishvananda/netns", []string{"xfrm", "dataplane/link", "cmd", "test"}},
	{"go.uber.org/goleak", []string{"_test"}},
	{"golang.org/x/crypto", []string{"offload", "_test"}},
	{"golang.org/x/net", []string{"_test", "cmd/culvert/internal/control"}},
	{"golang.org/x/sys", []string{"."}},
	{"golang.zx2c4.com/wireguard", []string{"dataplane/link", "test/peers"}},
	{"pgregory.net/rapid", []string{"_test"}},
}

// source is one Go file of the module, whatever build tags it has.
type source struct {
	name   string // slash-separated, from the root
	folder string
	test   bool
	file   *ast.File
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatalf("the module's root is not above this package: %v", err)
	}
	return dir
}

// sources parses the imports and the package comment of every Go file, leaving out testdata and modules within the module.
func sources(t *testing.T) []source {
	t.Helper()
	top := root(t)
	var out []source
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == top {
				return nil
			}
			base := d.Name()
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if nested == nil || base == "testdata" || base[0] == '.' || base[0] == '_' {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		out = append(out, source{rel, path.Dir(rel), strings.HasSuffix(rel, "_test.go"), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("no Go file was found: this test would prove nothing")
	}
	return out
}

// under reports whether folder is within pattern.
func under(folder, pattern string) bool {
	if pattern == "." {
		return true
	}
	if own, ok := strings.CutSuffix(pattern, "/."); ok {
		return folder == own
	}
	return folder == pattern || strings.HasPrefix(folder, pattern+"/")
}

func anyUnder(folder string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return under(folder, p) })
}

// allowedOurs reports whether a file of folder may import the package imported of this module, and what the table says of folder.
func allowedOurs(folder, imported string, test bool) (ok bool, rule string) {
	best := -1
	var may []string
	for _, row := range ours {
		if under(folder, row.folder) && len(row.folder) > best {
			best, may, rule = len(row.folder), row.may, row.folder
		}
	}
	if best < 0 {
		return false, "no row of the import table"
	}
	if test {
		// A test outside its package imports the package itself, and what lies beside it.
		if folder == imported {
			return true, rule
		}
		for top, more := range inTests {
			if under(folder, top) {
				may = append(slices.Clone(may), more...)
			}
		}
	}
	return anyUnder(imported, may), rule
}

// allowedTheirs reports whether a file may import somebody else's package.
func allowedTheirs(folder, imported string, test bool) bool {
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	for _, row := range theirs {
		if under(imported, row.prefix) {
			return test && slices.Contains(row.may, "_test") || anyUnder(folder, row.may)
		}
	}
	return false
}

// Every file of the tree keeps to the import table, also those that this machine does not build.
func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		for _, spec := range s.file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if imported == "C" {
				if !strings.HasPrefix(s.folder, "offload/ipsecmb") {
					t.Errorf("%s uses cgo: the gateway is built with CGO_ENABLED=0", s.name)
				}
				continue
			}
			if own, ok := strings.CutPrefix(imported, module+"/"); ok {
				if ok, rule := allowedOurs(s.folder, own, s.test); !ok {
					t.Errorf("%s imports %s, which the row for %q does not allow", s.name, imported, rule)
				}
				continue
			}
			if !allowedTheirs(s.folder, imported, s.test) {
				t.Errorf("%s imports %s, which the table of others' libraries does not allow there", s.name, imported)
			}
		}
	}
}

// The table itself refuses what the architecture forbids, so that TestImports is known to be able to fail.
func TestImportTableRefuses(t *testing.T) {
	for _, c := range []struct {
		folder, imported string
		test, want       bool
	}{
		{"offload", "offload/soft", false, false},
		{"offload", "offload/soft", true, true},
		{"offload/soft", "offload", false, true},
		{"offload/soft", "sa", false, false},
		{"offload/pool", "offload/soft", false, false},
		{"sa", "offload", false, true},
		{"sa", "offload/soft", false, false},
		{"sa", "dataplane", false, false},
		{"dataplane", "dataplane/link", false, true},
		{"dataplane", "xfrm", false, false},
		{"dataplane", "offload/offloadtest", false, false},
		{"dataplane", "offload/offloadtest", true, true},
		{"dataplane/link", "sa", false, false},
		{"dataplane/link", "sa", true, false},
		{"dataplane/link/memlink", "dataplane/link", false, true},
		{"dataplane/link/memlink", "dataplane", false, false},
		{"xfrm", "dataplane", false, false},
		{"configs", "dataplane", false, false},
		{"cmd/culvert", "dataplane/link", false, true},
		{"elsewhere", "sa", false, false},
	} {
		if got, _ := allowedOurs(c.folder, c.imported, c.test); got != c.want {
			t.Errorf("%s (test %v) importing %s: allowed %v, want %v", c.folder, c.test, c.imported, got, c.want)
		}
	}
	for _, c := range []struct {
		folder, imported string
		test, want       bool
	}{
		{"dataplane", "github.com/google/gopacket/layers", false, false},
		{"dataplane", "github.com/google/gopacket/layers", true, true},
		{"dataplane/link", "github.com/google/gopacket", false, false},
		{"dataplane/link/pcaplink", "github.com/google/gopacket/pcapgo", false, true},
		{"sa", "github.com/vishvananda/netlink", false, false},
		{"dataplane", "github.com/vishvananda/netlink", true, false},
		{"dataplane/link", "github.com/vishvananda/netlink", false, true},
		{"dataplane", "github.com/spf13/cobra", false, false},
		{"cmd/culvert", "example.org/new", false, false},
		{"sa", "net/netip", false, true},
	} {
		if got := allowedTheirs(c.folder, c.imported, c.test); got != c.want {
			t.Errorf("%s (test %v) importing %s: allowed %v, want %v", c.folder, c.test, c.imported, got, c.want)
		}
	}
}

// Every package says what it is in a package comment.
func TestPackageComments(t *testing.T) {
	said := map[string]bool{}
	for _, s := range sources(t) {
		doc := s.file.Doc.Text()
		name := s.file.Name.Name
		good := strings.HasPrefix(doc, "Package "+strings.TrimSuffix(name, "_test")+" ") ||
			name == "main" && (strings.HasPrefix(doc, "Command ") || strings.HasPrefix(doc, "The "))
		said[s.folder] = said[s.folder] || good
		if doc != "" && !good {
			t.Errorf("%s: the package comment begins %.40q: it should begin with \"Package %s \" (\"Command …\" for a program)", s.name, doc, name)
		}
	}
	for folder, ok := range said {
		if !ok {
			t.Errorf("%s has no package comment", folder)
		}
	}
}

// Nothing in the tree says of itself that it is unfinished.
func TestNothingUnfinished(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root(t)
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	// The words are put together here so that this file does not contain them.
	words := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	n := 0
	for name := range strings.SplitSeq(string(list), "\x00") {
		if name == "" || strings.Contains(name, "testdata/") || path.Base(name) == "go.sum" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(cmd.Dir, name))
		if os.IsNotExist(err) {
			continue // listed, and deleted in the work tree
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		for i, line := range strings.Split(string(text), "\n") {
			if w := words.FindString(line); w != "" {
				t.Errorf("%s:%d says %s: %s", name, i+1, w, strings.TrimSpace(line))
			}
		}
	}
	if n == 0 {
		t.Fatal("git lists no file: this test would prove nothing")
	}
}
