package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completed is what a shell would offer for the last word of a command line.
func completed(t *testing.T, words ...string) (offers []string, directive string) {
	t.Helper()
	out, err := said(append([]string{cobra.ShellCompRequestCmd}, words...)...)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := len(lines) - 1
	for _, l := range lines[:last] {
		name, _, _ := strings.Cut(l, "\t")
		offers = append(offers, name)
	}
	return offers, lines[last]
}

// The values that a flag takes are completed: also the second in a list, and key lengths by the transform.
func TestCompletion(t *testing.T) {
	const noFile = ":4" // cobra.ShellCompDirectiveNoFileComp
	const list = ":6"   // and ShellCompDirectiveNoSpace
	for _, c := range []struct {
		line, directive string
		want            []string
	}{
		{"demo --engine ", noFile, []string{"padlock", "multibuf", "soft"}},
		{"demo --link ", noFile, []string{"udp", "esp"}},
		{"demo --beside ", list, []string{"plain", "wireguard-go"}},
		{"demo --beside plain,", list, []string{"plain,wireguard-go"}},
		{"demo --outer ", noFile, []string{"4", "6"}},
		{"demo --inner ", noFile, []string{"4", "6"}},
		{"demo --transform rfc4106(gcm(aes)) --key-bits ", noFile, []string{"128", "192", "256"}},
		{"demo --transform rfc7539esp(chacha20,poly1305) --key-bits ", noFile, []string{"256"}},
		{"demo --seconds ", noFile, nil},
		{"speed --direction ", noFile, []string{"seal", "open", "both"}},
		{"speed --transform rfc7539esp(chacha20,poly1305) --key-bits ", list, []string{"256"}},
		{"speed --reference ", noFile, []string{"c2558"}},
		{"guard ", noFile, []string{"remove", "show"}},
		{"help guard ", noFile, []string{"remove", "show"}},
		{"status ", noFile, nil},
	} {
		offers, directive := completed(t, strings.Split(c.line, " ")...)
		if directive != c.directive || !slices.Equal(offers, c.want) {
			t.Errorf("%q: %q %s, want %q %s", c.line, offers, directive, c.want, c.directive)
		}
	}
	for _, line := range []string{"demo --transform ", "speed --transform "} {
		offers, _ := completed(t, strings.Split(line, " ")...)
		if !slices.Contains(offers, "rfc4106(gcm(aes))") || !slices.Contains(offers, "authenc(hmac(sha1),cbc(aes))") {
			t.Errorf("%q: %q", line, offers)
		}
	}
	if offers, _ := completed(t, "speed", "--engine", "soft,"); !slices.Contains(offers, "soft,multibuf") || slices.Contains(offers, "soft,soft") {
		t.Errorf("speed --engine soft,: %q", offers)
	}
}

// No flag that takes a value is left to the shell, which would offer it files.
func TestEveryFlagCompletes(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			_, known := c.GetFlagCompletionFunc(f.Name)
			if _, file := f.Annotations[cobra.BashCompFilenameExt]; f.Value.Type() != "bool" && !known && !file {
				t.Errorf("%s --%s: completions are not said", c.CommandPath(), f.Name)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root())
}
