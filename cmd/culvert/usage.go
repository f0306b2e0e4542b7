package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// strict makes every command that only groups others refuse a word that is none of them: cobra itself prints help and reports
// success, so that a script with a misspelt word would go on. Without a word, such a command prints its help. The others say what to
// write instead of arguments that they do not take.
func strict(c *cobra.Command) {
	c.SuggestionsMinimumDistance = suggestDistance
	for _, sub := range c.Commands() {
		strict(sub)
	}
	if !c.HasSubCommands() && c.Args != nil {
		taken := c.Args
		c.Args = func(c *cobra.Command, args []string) error {
			if taken(c, args) == nil {
				return nil
			}
			return wrongArguments(c, args)
		}
	}
	if !c.HasSubCommands() || c.Runnable() {
		return
	}
	// Cobra asks for --help before it looks at the words.
	c.Flags().VarPF(&groupHelp{c: c}, "help", "h", "help for "+c.Name()).NoOptDefVal = "true"
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(c, args[0])
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.DisableFlagsInUseLine = true
}

// groupHelp is the flag --help of a command that groups others. Behind a word that is none of them it is refused.
type groupHelp struct {
	c     *cobra.Command
	asked bool
}

func (h *groupHelp) String() string { return strconv.FormatBool(h.asked) }
func (h *groupHelp) Type() string   { return "bool" } // as cobra takes it for its own

// Set takes the words "true" and "false", as a flag of the library does.
func (h *groupHelp) Set(s string) (err error) {
	if words := h.c.Flags().Args(); len(words) > 0 {
		return unknownCommand(h.c, words[0])
	}
	h.asked, err = strconv.ParseBool(s)
	return err
}

// wrongArguments is the error for arguments that a command does not take, with what was probably meant.
func wrongArguments(c *cobra.Command, args []string) error {
	_, takes, _ := strings.Cut(c.Use, " ")
	switch {
	case c.Flags().Lookup("config") != nil && !c.Flags().Changed("config") && len(args) == 1:
		return fmt.Errorf("%q: a configuration has -c before it; write: %s -c %s", args[0], c.CommandPath(), args[0])
	case takes == "" && len(args) == 1:
		return fmt.Errorf("%s takes no argument, and %q is one: leave it out; %[1]s --help lists the flags", c.CommandPath(), args[0])
	case takes == "":
		return fmt.Errorf("%s takes no arguments, and %q are some: leave them out; %[1]s --help lists the flags", c.CommandPath(), args)
	default:
		return fmt.Errorf("%s takes one argument, and %q are %d; write: %[1]s %[4]s", c.CommandPath(), args, len(args), args[0])
	}
}

// kinds are the types of flags whose values the library reads, in words.
var kinds = map[string]string{
	"bool": "true or false", "int": "a whole number", "float64": "a number", "duration": "a time with its unit", "intSlice": "whole numbers with commas between them",
}

// samples are values for flags whose default is no good one to show.
var samples = map[string]string{"key-bits": "256", "workers": "2", "size": "1024"}

// wrongValue is the error for the value of a flag that is not of its type.
func wrongValue(e *pflag.InvalidValueError) error {
	f := e.GetFlag()
	kind, ok := kinds[f.Value.Type()]
	if !ok {
		return fmt.Errorf("--%s %q: %w", f.Name, e.GetValue(), e.Unwrap())
	}
	sample, ok := samples[f.Name]
	if !ok {
		sample = f.DefValue
	}
	_, usage := pflag.UnquoteUsage(f)
	return fmt.Errorf("--%s %q: write %s, such as --%[1]s=%[4]s; it is for: %[5]s", f.Name, e.GetValue(), kind, sample, usage)
}

// flagError is the error for flags that could not be read. A wrong word in front of them is named first: they may be those of the
// command that was meant.
func flagError(c *cobra.Command, err error) error {
	if words := c.Flags().Args(); c.HasSubCommands() && len(words) > 0 {
		return unknownCommand(c, words[0])
	}
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		return wrongValue(value)
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

// instead says what does the work of commands that others have.
var instead = map[string]string{
	"reload":  "a gateway reads its configuration again on SIGHUP: systemctl reload culvert, or kill -HUP PID; culvert status says whose",
	"stop":    "a gateway stops on SIGTERM: systemctl stop culvert, or kill PID; culvert status says whose",
	"start":   "culvert run starts a gateway in the foreground; systemctl start culvert starts the service",
	"restart": "systemctl restart culvert restarts the service; without one, stop culvert run with SIGTERM and start it again",
}

// unknownCommand is the error for a word that is no subcommand of c. It names those that were probably meant, else all.
func unknownCommand(c *cobra.Command, word string) error {
	if how, ok := instead[word]; ok && !c.HasParent() {
		return fmt.Errorf("there is no command %q: %s", word, how)
	}
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
