package complete

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// offers is what a shell would be given for what is begun of a flag's value.
func offers(t *testing.T, c *cobra.Command, flag, begun string) ([]string, cobra.ShellCompDirective) {
	t.Helper()
	f, ok := c.GetFlagCompletionFunc(flag)
	if !ok {
		t.Fatalf("--%s is not completed", flag)
	}
	values, directive := f(c, nil, begun)
	return values, directive
}

// A list is completed after each comma with what is not yet in it; a single value as it is.
func TestList(t *testing.T) {
	c := &cobra.Command{Use: "x"}
	c.Flags().StringSlice("many", nil, "")
	c.Flags().String("one", "", "")
	List(c, "many", Fixed("a", "b", "c"))
	Flag(c, "one", Fixed("a", "b", "c"))
	for _, e := range []struct {
		flag, begun string
		want        []string
	}{
		{"many", "", []string{"a", "b", "c"}},
		{"many", "b", []string{"a", "b", "c"}},
		{"many", "b,", []string{"b,a", "b,c"}},
		{"many", "c,a,x", []string{"c,a,b"}},
		{"many", "a,b,c,", nil},
		{"one", "", []string{"a", "b", "c"}},
	} {
		if got, _ := offers(t, c, e.flag, e.begun); !slices.Equal(got, e.want) {
			t.Errorf("--%s %q: %q, want %q", e.flag, e.begun, got, e.want)
		}
	}
	if _, d := offers(t, c, "many", ""); d&cobra.ShellCompDirectiveNoSpace == 0 {
		t.Error("a list gets a space behind its first value: a comma may follow")
	}
}

// Key lengths are those of the transform that was named, whether the flag takes one or several; else those of all.
func TestKeyBits(t *testing.T) {
	one := &cobra.Command{Use: "one"}
	one.Flags().String("transform", "authenc(hmac(sha1),cbc(aes))", "")
	many := &cobra.Command{Use: "many"}
	many.Flags().StringArray("transform", nil, "")
	for _, e := range []struct {
		c    *cobra.Command
		args []string
		want []string
	}{
		{one, nil, []string{"128", "192", "256"}},
		{one, []string{"--transform", "rfc7539esp(chacha20,poly1305)"}, []string{"256"}},
		{one, []string{"--transform", "unknown"}, KeyBits(many)},
		{many, []string{"--transform", "rfc7539esp(chacha20,poly1305)"}, []string{"256"}},
	} {
		if err := e.c.ParseFlags(e.args); err != nil {
			t.Fatal(err)
		}
		if got := KeyBits(e.c); !slices.Equal(got, e.want) {
			t.Errorf("%s %q: %q, want %q", e.c.Use, e.args, got, e.want)
		}
	}
	if all := KeyBits(&cobra.Command{Use: "none"}); !slices.Contains(all, "128") || slices.Contains(all, "0") {
		t.Errorf("without a transform: %q", all)
	}
}

// Names are offered once, and those of engines are what the gateway's configuration takes.
func TestNames(t *testing.T) {
	names := Transforms("all")(nil)
	if names[0] != "all" || !slices.Contains(names, "rfc4106(gcm(aes))") || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("%q", names)
	}
	if engines := Engines(nil); !slices.Contains(engines, "soft") || !slices.Contains(engines, "multibuf") {
		t.Errorf("%q", engines)
	}
}
