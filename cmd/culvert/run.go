package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

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

// run serves until a signal ends it. The signals are taken before anything is started, so that none is missed.
func run(file string) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

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
		case s := <-signals:
			if s == syscall.SIGHUP {
				notify(log, daemon.SdNotifyReloading)
				if err := reload(g, file); err != nil {
					log.Error("the configuration was not loaded; the gateway goes on with the old one", "reason", err)
				}
				notify(log, daemon.SdNotifyReady)
				continue
			}
			notify(log, daemon.SdNotifyStopping)
			log.Info("stopping", "signal", s.String())
			return g.Stop()
		case <-g.Died():
			notify(log, daemon.SdNotifyStopping)
			if err := g.Stop(); err != nil {
				return err
			}
			return fmt.Errorf("the data plane stopped by itself")
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
		Use:       "example [NAME]",
		Short:     "Print a commented example configuration, or list them",
		Example:   "  culvert example site-to-site-udp.toml > culvert.toml && chmod 600 culvert.toml",
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
started yet, and still nothing that a policy protects leaves, or comes in, unprotected.`,
	}
	c.AddCommand(&cobra.Command{
		Use:   "show",
		Short: "Count the guard's rules and routes on this host",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rules, routes, err := hostnet.Leftovers()
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "rules %d, routes %d in table %d; `ip rule` and `ip route show table %[3]d` list them\n", rules, routes, hostnet.Table)
			return nil
		},
	}, &cobra.Command{
		Use:   "remove",
		Short: "Remove the guard: from now on traffic to the remote subnets takes any route there is, in the clear",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return hostnet.Remove() },
	})
	return c
}
