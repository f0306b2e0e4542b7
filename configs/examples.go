package configs

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.toml *.key culvert.service culvert-ike.conf strongswan-culvert.conf
var examples embed.FS

// Examples lists the examples by name: the configurations, their sample key files, the systemd unit, and drop-ins for it and strongSwan's.
func Examples() []string {
	entries, err := fs.ReadDir(examples, ".")
	if err != nil {
		panic(err) // the directory is in the program itself
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Example returns an example's text, ready to be written to a file (mode 0600: there are sample keys in it, to be replaced
// by real ones). The .toml of a configuration's name can be left out. The error lists the names that there are.
func Example(name string) ([]byte, error) {
	for _, n := range []string{name, name + ".toml"} {
		if b, err := examples.ReadFile(n); err == nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("there is no example %s; there are %s", show(name), strings.Join(Examples(), ", "))
}
