package complete

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Values are what may be written; c has the flags that were given so far.
type Values func(c *cobra.Command) []string

// Fixed are values that depend on nothing.
func Fixed(values ...string) Values {
	return func(*cobra.Command) []string { return values }
}

// Flag completes a flag that takes one value. It panics if the command has no such flag.
func Flag(c *cobra.Command, name string, values Values) {
	register(c, name, func(c *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return values(c), cobra.ShellCompDirectiveNoFileComp
	})
}

// List completes a flag that takes several values with commas between them, each once. It panics if the command has no such flag.
func List(c *cobra.Command, name string, values Values) {
	register(c, name, func(c *cobra.Command, _ []string, begun string) (lists []cobra.Completion, _ cobra.ShellCompDirective) {
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		written := strings.Split(before, ",")
		for _, v := range values(c) {
			if !slices.Contains(written, v) {
				lists = append(lists, before+v)
			}
		}
		return lists, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
}

// Nothing keeps a shell from offering files for flags that take a number or a time.
func Nothing(c *cobra.Command, names ...string) {
	for _, name := range names {
		register(c, name, cobra.NoFileCompletions)
	}
}

func register(c *cobra.Command, name string, f cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(name, f); err != nil {
		panic(err) // no such flag, or registered twice: a mistake in the program
	}
}
