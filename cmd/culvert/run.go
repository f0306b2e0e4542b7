package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"culvert/cmd/culvert/internal/early"
	"culvert/cmd/culvert/internal/gateway"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
)

const defaultConfig = "/etc/culvert/culvert.toml"

func configFlag(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "config", "c", defaultConfig, "the configuration")
	c.MarkFlagFilename("config", "toml")
}

func runCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the gateway in the foreground",
		Long: `Run the gateway in the foreground.

SIGTERM or SIGINT drains what is in flight and stops. SIGHUP loads the configuration again: what can be
changed in a running gateway is, all at once; if anything in it is wrong or needs a restart, the log says what and
the gateway goes on as it was.

The guard (see culvert guard --help) stays when the gateway stops, so that nothing that a policy protects leaves in
the clear.`,
		Example: `  sudo culvert run -c /etc/culvert/culvert.toml
  sudo systemctl reload culvert           # SIGHUP`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return run(file) },
	}
	configFlag(c, &file)
	return c
}

// run serves until a signal ends it.
func run(file string) error {
	early.Take(early.Reload, early.Stop)
	defer signal.Stop(early.Reload)
	defer signal.Stop(early.Stop)

	if err := gateway.ProtectMemory(); err != nil {
		return err
	}
	cfg, err := configs.Load(file)
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	gateway.SetLevel(level, cfg.Log.Level)
	log := newLog(cfg.Log.Format, level)
	g, err := gateway.Start(cfg, log, level, versionString())
	if err != nil {
		return err
	}
	notify(log, daemon.SdNotifyReady)
	log.Info("ready", "config", file, "tunnels", len(cfg.Tunnels))
	for {
		select {
		case <-early.Reload:
			notify(log, daemon.SdNotifyReloading)
			if err := reload(g, file); err != nil {
				g.Refused(err)
				log.Error("the configuration was not loaded; the gateway goes on with the old one", "reason", err)
			}
			notify(log, daemon.SdNotifyReady)
		case s := <-early.Stop:
			notify(log, daemon.SdNotifyStopping)
			log.Info("stopping", "signal", s.String())
			return g.Stop()
		case <-g.Died():
			notify(log, daemon.SdNotifyStopping)
			return g.Cause(g.Stop())
		}
	}
}

func reload(g *gateway.Gateway, file string) error {
	cfg, err := configs.Load(file)
	if err != nil {
		return err
	}
	return g.Reload(cfg)
}

func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("could not notify the service manager", "reason", err)
	}
}

func newLog(format configs.LogFormat, level *slog.LevelVar) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == configs.LogJSON {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}

func exampleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "example [NAME]",
		Short: "Print a commented example configuration, or list them",
		Long: `Print a commented example configuration, or list all that there is.

The examples over IPv6 have their keys in two files of their own, branch-out.key and branch-in.key, which are looked for
beside the configuration. The second line below makes them; both ends need the same two.`,
		Example: `  culvert example site-to-site-udp.toml > culvert.toml && chmod 600 culvert.toml
  umask 077; for k in out in; do openssl rand -hex 36 > branch-$k.key; done; culvert example site-to-site-esp-ipv6.toml > culvert.toml`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: configs.Examples(),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, n := range configs.Examples() {
					fmt.Fprintln(c.OutOrStdout(), n)
				}
				return nil
			}
			b, err := configs.Example(args[0])
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(b)
			return err
		},
	}
}

func guardCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "guard",
		Short: "The routes and rules that keep protected traffic from leaving in the clear",
		Long: `The guard is a set of routing rules and unreachable routes (ip rule, ip route show table 4303) that stands from before
the gateway's first packet until it is removed here, whatever happens to the gateway: it may be stopped, killed or not
started yet, and still nothing that a policy protects leaves, or is forwarded in, unprotected.

One thing it does not cover: clear packets that claim to come from a remote subnet and are addressed to one of the
gateway's own addresses. The kernel delivers those by its rule 0 (local), before any rule of the guard; where that
matters, a firewall must drop what comes from a remote subnet on another interface than the TUN.`,
	}
	c.AddCommand(guardShowCommand(), guardRemoveCommand())
	return c
}

func guardShowCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the guard on this host, and what a configuration asks for and is missing",
		Long: `Show the rules and routes of culvert's that this host has. With -c, or where the default configuration can be read, they
are compared with what it asks for: what is missing is said, and the exit code is 1.`,
		Example: "  sudo culvert guard show -c /etc/culvert/culvert.toml",
		Args:    cobra.NoArgs,
	}
	configFlag(c, &file)
	c.RunE = func(c *cobra.Command, _ []string) error {
		h, err := hostnet.Here()
		if err != nil {
			return err
		}
		defer h.Close()
		all, err := h.List()
		if err != nil {
			return err
		}
		w := c.OutOrStdout()
		for _, l := range all {
			fmt.Fprintln(w, l)
		}
		if len(all) == 0 {
			fmt.Fprintln(w, "this host has no rule or route of culvert's")
		}
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && !c.Flags().Changed("config") {
			fmt.Fprintf(w, "Not compared with a configuration: there is no %s; name another with -c.\n", file)
			return nil
		}
		cfg, err := configs.Load(file)
		if err != nil {
			return err
		}
		defer cfg.Wipe()
		if !cfg.Guard.Enabled {
			fmt.Fprintf(w, "%s asks for no guard (guard.enabled = false).\n", file)
			return nil
		}
		missing, err := gateway.GuardMissing(h, cfg)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return fmt.Errorf("the guard that %s asks for is incomplete: missing are %s; a running gateway lays it again at once, `culvert run` at its start", file, strings.Join(missing, ", "))
		}
		fmt.Fprintf(w, "The guard that %s asks for is complete.\n", file)
		return nil
	}
	return c
}

func guardRemoveCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "remove",
		Short: "Remove the guard: from now on traffic to the remote subnets takes any route there is, in the clear",
		Long: `Remove the guard, and print what was removed: from now on traffic to the remote subnets takes any route there is, in the
clear. A running gateway needs it and would lay it again; stop the gateway first.`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVar(&force, "force", false, "also while a gateway runs, which will lay it again")
	c.RunE = func(c *cobra.Command, _ []string) error {
		// While it is removed no gateway may start.
		owner, err := hostnet.Own()
		switch {
		case err == nil:
			defer owner.Release()
		case !errors.Is(err, hostnet.ErrOwned):
			return err
		case !force:
			return fmt.Errorf("a gateway runs here, %s, and would lay the guard again at once; stop it first, or say --force", hostnet.Process(hostnet.OwnedBy()))
		default:
			fmt.Fprintf(c.ErrOrStderr(), "warning: a gateway runs here, %s; unless it hangs, it lays the guard again at once\n", hostnet.Process(hostnet.OwnedBy()))
		}
		h, err := hostnet.Here()
		if err != nil {
			return err
		}
		defer h.Close()
		all, err := h.List()
		if err != nil {
			return err
		}
		if err := h.Remove(); err != nil {
			return err
		}
		for _, l := range all {
			fmt.Fprintln(c.OutOrStdout(), "removed", l)
		}
		if len(all) == 0 {
			fmt.Fprintln(c.OutOrStdout(), "there was nothing to remove")
		}
		return nil
	}
	return c
}
