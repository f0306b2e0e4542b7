package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/demo"
	"culvert/cmd/culvert/internal/speed"
)

// version is set by the linker at a release; otherwise it is the commit that the toolchain recorded, or "devel".
var version = ""

func versionString() string {
	if version != "" {
		return version
	}
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel " + s.Value[:12]
			}
		}
	}
	return "devel"
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "culvert",
		Short: "A userspace IPsec ESP gateway",
		Long: `Culvert is a userspace IPsec ESP gateway: site-to-site tunnels (RFC 4303) on any Linux kernel,
also one without ESP. It reads packets from a TUN, seals them in bursts, and sends them as
ESP-in-UDP or as native ESP; and the reverse.`,
		Example: `  sudo culvert demo                       see it work: four namespaces, two gateways, a tunnel
  culvert check -c /etc/culvert/culvert.toml
  sudo culvert run -c /etc/culvert/culvert.toml
  sudo culvert status
  sudo culvert exec -- /usr/sbin/charon-systemd   strongSwan's tunnels, carried by the gateway`,
		Version:       versionString(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(runCommand(), checkCommand(), exampleCommand(), statusCommand(), saCommand(), policyCommand(),
		enginesCommand(), guardCommand(), execCommand(), demo.Command(versionString()), speed.Command(), versionCommand())
	c.SetHelpCommand(helpCommand())
	// Cobra would add these two only when it runs.
	c.InitDefaultHelpCmd()
	c.InitDefaultCompletionCmd()
	c.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp) // arguments are never files
	strict(c)
	c.SetFlagErrorFunc(flagError)
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, as --version does",
		Example: "  culvert version",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "culvert version %s\n", versionString())
			return err
		},
	}
}

// queryFlags are those of every command that asks a running gateway.
type queryFlags struct {
	socket string
	json   bool
}

func (q *queryFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&q.socket, "control", control.DefaultSocket, "the gateway's control socket")
	c.Flags().BoolVar(&q.json, "json", false, "print JSON")
	c.MarkFlagFilename("control")
}

// ask prints the document what: as the gateway sent it with --json, else through text.
func ask[T any](c *cobra.Command, q *queryFlags, what string, text func(io.Writer, T)) error {
	raw, err := control.Dial(q.socket).Raw(what)
	if err != nil {
		return err
	}
	if q.json {
		_, err = c.OutOrStdout().Write(raw)
		return err
	}
	var doc T
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("the gateway's answer: %w", err)
	}
	text(c.OutOrStdout(), doc)
	return nil
}
