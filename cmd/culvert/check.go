package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"culvert/cmd/culvert/internal/gateway"
	"culvert/configs"
)

func checkCommand() *cobra.Command {
	var file string
	var syntaxOnly bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration: every mistake with file:line:column and how to mend it",
		Long: `Check a configuration: every mistake with file:line:column and how to mend it.

What run would refuse, check refuses with the same words, also what this host does not have: an engine, an address,
a directory that can be written, a free port. It changes nothing, and a gateway may be running meanwhile: what that holds
counts as free. What run needs and the user who checks may not do is a warning. A configuration for another host is
checked with --syntax-only.`,
		Example: `  culvert check -c /etc/culvert/culvert.toml
  culvert check -c new.toml && sudo cp new.toml /etc/culvert/culvert.toml && sudo systemctl reload culvert
  culvert check -c for-the-branch.toml --syntax-only`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := configs.Load(file)
			if err != nil {
				return err
			}
			defer cfg.Wipe()
			more, err := gateway.Check(cfg, false)
			if err == nil && !syntaxOnly {
				if more, err = gateway.Check(cfg, true); err != nil {
					err = errors.Join(err, errors.New("to check it for another host than this one, say --syntax-only"))
				}
			}
			cfg.Warnings = append(cfg.Warnings, more...)
			cfg.EachWarning(func(w string) { fmt.Fprintln(c.ErrOrStderr(), "warning:", w) })
			if err != nil {
				return err
			}
			what := "is right for this host"
			if syntaxOnly {
				what = "is right in itself; what the host must have was not looked for"
			}
			fmt.Fprintf(c.OutOrStdout(), "%s %s: tunnels %d, policies %d\n", file, what, len(cfg.Tunnels), len(cfg.Policies))
			return nil
		},
	}
	configFlag(c, &file)
	c.Flags().BoolVar(&syntaxOnly, "syntax-only", false, "do not ask whether this host has what the configuration needs")
	return c
}
