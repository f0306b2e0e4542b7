package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// strict makes every command that only groups others refuse a word that is none of them: cobra itself prints help and reports
// success, so that a script with a misspelt word would go on. Without a word, such a command prints its help.
func strict(c *cobra.Command) {
	c.SuggestionsMinimumDistance = suggestDistance
	for _, sub := range c.Commands() {
		strict(sub)
	}
	if !c.HasSubCommands() || c.Runnable() {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(c, args[0])
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.DisableFlagsInUseLine = true
}

// flagError is the error for flags that could not be read. A wrong word in front of them is named first: they may be those of the
// command that was meant.
func flagError(c *cobra.Command, err error) error {
	if words := c.Flags().Args(); c.HasSubCommands() && len(words) > 0 {
		return unknownCommand(c, words[0])
	}
	var absent *pflag.NotExistError
	if !errors.As(err, &absent) {
		return err
	}
	// Cobra's measure of what is near, for the names of flags.
	names := &cobra.Command{SuggestionsMinimumDistance: suggestDistance}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := names.SuggestionsFor(absent.GetSpecifiedName()); len(near) > 0 {
		return fmt.Errorf("%w: did you mean --%s?", err, strings.Join(near, " or --"))
	}
	return fmt.Errorf("%w: %s --help lists the flags", err, c.CommandPath())
}

// suggestDistance is how many letters a word may be off (Levenshtein) for a name to be suggested.
const suggestDistance = 2

// unknownCommand is the error for a word that is no subcommand of c. It names those that were probably meant, else all.
func unknownCommand(c *cobra.Command, word string) error {
	if near := c.SuggestionsFor(word); len(near) > 0 {
		return fmt.Errorf("unknown command %q for %q: did you mean %s?", word, c.CommandPath(), strings.Join(near, " or "))
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %q: there are %s", word, c.CommandPath(), strings.Join(names, ", "))
}

// helpCommand is cobra's, but that it fails for a command that does not exist.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]...",
		Short: "Help about a command",
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			at, err := find(c.Root(), args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, sub := range at.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			at, err := find(c.Root(), args)
			if err != nil {
				return err
			}
			at.InitDefaultHelpFlag()
			at.InitDefaultVersionFlag()
			return at.Help()
		},
	}
}

// find is the command that the words lead to.
func find(at *cobra.Command, words []string) (*cobra.Command, error) {
next:
	for _, word := range words {
		for _, sub := range at.Commands() {
			if sub.Name() == word || sub.HasAlias(word) {
				at = sub
				continue next
			}
		}
		return nil, unknownCommand(at, word)
	}
	return at, nil
}
