package test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// code are the endings of files that belong in a package's map.
var code = []string{".go", ".s", ".c", ".h", ".py"}

// packageFiles lists the files of every package of the tree by folder, also of modules within the module.
func packageFiles(t *testing.T) map[string][]string {
	t.Helper()
	top := root(t)
	found := map[string][]string{}
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && name != top && (base == "testdata" || base[0] == '.' || base[0] == '_') {
			return fs.SkipDir
		}
		if d.IsDir() || !slices.Contains(code, path.Ext(base)) {
			return nil
		}
		rel, err := filepath.Rel(top, filepath.Dir(name))
		found[filepath.ToSlash(rel)] = append(found[filepath.ToSlash(rel)], base)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(found, func(_ string, files []string) bool {
		return !slices.ContainsFunc(files, func(f string) bool { return path.Ext(f) == ".go" })
	})
	if len(found) < 20 {
		t.Fatalf("%d packages were found: this test would prove nothing", len(found))
	}
	return found
}

// mapped are the files that a package comment names, as patterns: "level_*.go" stands for several.
var mapped = regexp.MustCompile(`(?:^|[\s(,])([\w*]+\.(?:go|s|c|h|py))\b`)

// docFaults are what is wrong with a package's doc.go: doc is its comment, and files are the package's.
func docFaults(doc string, files []string) (faults []string) {
	if strings.TrimSpace(doc) == "" {
		return []string{"doc.go has no package comment"}
	}
	var patterns []string
	for _, m := range mapped.FindAllStringSubmatch(doc, -1) {
		patterns = append(patterns, m[1])
	}
	matches := func(pattern, file string) bool {
		ok, err := path.Match(pattern, file)
		return ok && err == nil
	}
	for _, p := range patterns {
		if !slices.ContainsFunc(files, func(f string) bool { return matches(p, f) }) {
			faults = append(faults, "doc.go's map has "+p+", which is not there")
		}
	}
	var sources []string
	for _, f := range files {
		if f != "doc.go" && !strings.HasSuffix(f, "_test.go") {
			sources = append(sources, f)
		}
	}
	if len(sources) < 2 {
		return faults // the only file needs no map
	}
	for _, f := range sources {
		// x_amd64.s and x_other.go are meant with x.go.
		stem, _, _ := strings.Cut(strings.TrimSuffix(f, path.Ext(f)), "_")
		if !slices.ContainsFunc(patterns, func(p string) bool { return matches(p, f) || matches(p, stem+".go") }) {
			faults = append(faults, f+" is not in doc.go's map of the package")
		}
	}
	return faults
}

// Every package has its comment in doc.go, and with more than one file a map of them that is complete and true.
func TestPackageMaps(t *testing.T) {
	top := root(t)
	all := packageFiles(t)
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		files := all[folder]
		if !slices.Contains(files, "doc.go") {
			t.Errorf("%s has no doc.go", folder)
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, folder, "doc.go"), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range docFaults(f.Doc.Text(), files) {
			t.Errorf("%s: %s", folder, fault)
		}
		for _, name := range files {
			if name == "doc.go" || path.Ext(name) != ".go" {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, folder, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc.Text() != "" {
				t.Errorf("%s/%s: the package comment belongs in doc.go", folder, name)
			}
		}
	}
}

// The check finds what it is for.
func TestPackageMapsRefuse(t *testing.T) {
	files := []string{"doc.go", "a.go", "a_amd64.s", "b_other.go", "a_test.go"}
	for _, c := range []struct {
		doc  string
		want []string
	}{
		{"", []string{"doc.go has no package comment"}},
		{"Package x.\n\n\ta.go  this\n\tb_*.go  that\n", nil},
		{"Package x: a.go, b.go", []string{"doc.go's map has b.go, which is not there"}},
		{"Package x: a.go", []string{"b_other.go is not in doc.go's map of the package"}},
		{"Package x: a.go, b_other.go, and what ../y/z.go does", nil},
	} {
		if got := docFaults(c.doc, files); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.doc, got, c.want)
		}
	}
	if got := docFaults("Package x.", []string{"doc.go", "only.go"}); got != nil {
		t.Errorf("a package of one file: %q", got)
	}
}
