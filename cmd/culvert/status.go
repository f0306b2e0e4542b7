package main

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"culvert/cmd/culvert/internal/complete"
	"culvert/cmd/culvert/internal/control"
	"culvert/dataplane"
)

func statusCommand() *cobra.Command {
	var q queryFlags
	var wait time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "What the running gateway is doing: links, lanes, drops by cause, and whether the books balance",
		Example: `  sudo culvert status
  sudo culvert status --json | jq '.lanes[].drops'
  sudo culvert run & sudo culvert status --wait 10s`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if wait < 0 {
				return fmt.Errorf("--wait %v: write a duration of 0 or more, like 10s", wait)
			}
			if err := awaitReady(c.Context(), control.Dial(q.socket), wait); err != nil {
				return err
			}
			return ask(c, &q, "status", printStatus)
		},
	}
	q.add(c)
	c.Flags().DurationVar(&wait, "wait", 0, "so long at most, wait until the gateway answers and its routes and guard are in place")
	complete.Flag(c, "wait", complete.Fixed("10s", "1m"))
	return c
}

// awaitReady returns when a gateway answers and its host is as it should be. With 0 it does not wait.
func awaitReady(ctx context.Context, gateway *control.Client, most time.Duration) error {
	for end := time.Now().Add(most); most > 0; {
		s, err := gateway.Status()
		if err == nil && s.Host.InPlace {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the gateway is not ready: host %s", hostLine(s.Host))
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v: %w", most, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func printStatus(w io.Writer, s control.Status) {
	fmt.Fprintf(w, "culvert %s, pid %d, up %s\n", s.Version, s.PID, since(s.Started))
	fmt.Fprintf(w, "configuration  %s, loaded %s ago, tunnels: %d\n", s.Config, since(s.Loaded), s.Tunnels)
	if r := s.Refused; r != nil {
		fmt.Fprintf(w, "reload         REFUSED %s ago, the configuration above is still the one in use:\n", since(r.At))
		for line := range strings.Lines(r.Reason) {
			fmt.Fprintf(w, "               %s\n", strings.TrimRight(line, "\n"))
		}
	}
	workers := "run to completion"
	if s.Workers > 0 {
		workers = fmt.Sprintf("%d workers for lanes that cannot keep up", s.Workers)
	}
	fmt.Fprintf(w, "engine         %s, %s\n", s.Engine, workers)
	fmt.Fprintf(w, "tun            %s, MTU %d, %s\n", s.TUN.Name, s.TUN.MTU, s.TUN.Offloads)
	printKernelDrops(w, s.TUN.KernelDrops, "packets for the TUN: its queue was full")
	fmt.Fprintf(w, "host           %s\n", hostLine(s.Host))
	if s.State != nil {
		fmt.Fprintf(w, "state          %s\n", stateLine(s.State))
	}
	for _, l := range s.Links {
		fmt.Fprintf(w, "link           %s on %s, %s\n", l.Name, l.Local, l.Offloads)
		printKernelDrops(w, l.KernelDrops, "datagrams for this socket: its buffer was full")
	}
	if s.IKE != nil {
		var held uint64
		for _, l := range s.Lanes {
			held += l.Held
		}
		printIKE(w, s.IKE, held)
	}
	for _, h := range s.Hints {
		of := ""
		if h.Tunnel != "" {
			of = h.Tunnel + ": "
		}
		fmt.Fprintf(w, "HINT           %s%s (packets: %d, the last %s ago)\n               %s\n", of, h.Text, h.Packets, since(h.Last), h.Mend)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "lane\tpackets in\tout\tdropped\tin flight\tMB in\tMB out\tpackets/burst\tbalanced\t")
	for _, l := range s.Lanes {
		var dropped uint64
		for _, n := range l.Drops {
			dropped += n
		}
		perBurst := "-"
		if l.Bursts > 0 {
			perBurst = strconv.FormatFloat(float64(l.PacketsIn)/float64(l.Bursts), 'f', 1, 64)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.1f\t%.1f\t%s\t%s\t\n", l.Name, l.PacketsIn, l.PacketsOut, dropped, l.InFlight,
			float64(l.BytesIn)/1e6, float64(l.BytesOut)/1e6, perBurst, yesNo(l.Balanced))
	}
	t.Flush()
	printDrops(w, s.Lanes)
}

// printIKE shows what the IKE daemon has of the gateway.
func printIKE(w io.Writer, i *control.IKE, held uint64) {
	fmt.Fprintf(w, "ike            SAs: %d, policies: %d, routed pairs: %d; requests %d (%d refused), acquires %d (%d lost), mappings %d\n",
		i.SAs, i.Policies, i.Routed, i.Requests, i.Refusals, i.Acquires, i.AcquiresLost, i.Mappings)
	if len(i.Clients) == 0 {
		fmt.Fprintf(w, "               no program under culvert exec --socket %s\n", i.Socket)
	}
	for _, c := range i.Clients {
		events := ""
		if len(c.Events) > 0 {
			events = ", hears " + strings.Join(c.Events, " ")
		}
		if c.Lost > 0 {
			events += fmt.Sprintf(", LOST %d messages", c.Lost)
		}
		fmt.Fprintf(w, "               %s[%d] has XFRM socket %d%s\n", c.Program, c.PID, c.Port, events)
	}
	for _, p := range i.Ports {
		fmt.Fprintf(w, "               %s[%d] shares UDP port %s\n", p.Program, p.PID, p.Address)
	}
	if held > 0 {
		fmt.Fprintf(w, "               %d packets wait for an SA\n", held)
	}
	if i.Failures > 0 {
		fmt.Fprintf(w, "               %d system calls of programs FAILED for reasons of the gateway's own; the log has them\n", i.Failures)
	}
	const most = 8
	for n, p := range i.Refused {
		if n == most {
			fmt.Fprintf(w, "               refused: … and %d more\n", len(i.Refused)-most)
			break
		}
		fmt.Fprintf(w, "               refused: %s, which no policy protects now\n", p)
	}
	if i.Notice != "" {
		fmt.Fprintf(w, "               NOTE: %s\n", i.Notice)
	}
}

// printKernelDrops says what was lost before any lane saw it.
func printKernelDrops(w io.Writer, n *uint64, what string) {
	if n != nil && *n > 0 {
		fmt.Fprintf(w, "               the kernel dropped %d %s; the gateway cannot keep up, no lane's books have these\n", *n, what)
	}
}

// stateLine says whether sequence numbers can be reserved.
func stateLine(s *control.State) string {
	line := s.File
	if s.Mended > 0 {
		line += fmt.Sprintf(", made again %d times after others took it away", s.Mended)
	}
	if s.Problem == "" {
		return line
	}
	line += "\n               NO SEQUENCE NUMBERS can be reserved"
	if s.Since != nil {
		line += fmt.Sprintf(", for %s", since(*s.Since))
	}
	line += ": " + s.Problem + "\n               " + s.Mend
	for i, l := range s.Left {
		if i == leftShown {
			return line + fmt.Sprintf("\n               and %d more tunnels, see --json", len(s.Left)-i)
		}
		if l.Packets == 0 {
			line += fmt.Sprintf("\n               %s (%s) sends nothing: what was reserved is used up (seq-not-reserved)", l.Tunnel, l.SPI)
		} else {
			line += fmt.Sprintf("\n               %s (%s) can send %d more packets", l.Tunnel, l.SPI, l.Packets)
		}
	}
	return line
}

// leftShown is how many tunnels the text names.
const leftShown = 8

// hostLine says in one line whether the host's routes are what they should be.
func hostLine(h control.Host) string {
	line := "routes and guard in place"
	if !h.Guard {
		line = "routes in place, no guard (guard.enabled = false)"
	}
	switch {
	case h.Problem != "":
		line = "INCOMPLETE: " + h.Problem
	case !h.InPlace:
		line = "being laid again"
	}
	if len(h.Missing) > 0 {
		line += ", missing: " + strings.Join(h.Missing, ", ")
	}
	if h.Restored > 0 {
		line += fmt.Sprintf(", laid again %d times after others removed something", h.Restored)
	}
	return line
}

// printDrops lists the drops of all lanes by cause, with what each cause means.
func printDrops(w io.Writer, lanes []control.Lane) {
	texts := map[string]string{}
	for _, c := range dataplane.Causes() {
		texts[c.String()] = c.Text()
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	any := false
	for _, l := range lanes {
		names := make([]string, 0, len(l.Drops))
		for n := range l.Drops {
			names = append(names, n)
		}
		sort.Slice(names, func(i, j int) bool { return l.Drops[names[i]] > l.Drops[names[j]] })
		for _, n := range names {
			if !any {
				fmt.Fprintln(t, "\ndropped\tlane\tcause\tmeaning")
				any = true
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", l.Drops[n], l.Name, n, texts[n])
		}
	}
	t.Flush()
	if !any {
		fmt.Fprintln(w, "\nnothing dropped")
	}
}

func saCommand() *cobra.Command {
	c := &cobra.Command{Use: "sa", Short: "The security associations of the running gateway"}
	var q queryFlags
	list := &cobra.Command{
		Use:   "list",
		Short: "List the SAD: SPI, transform, sequence, packets, replays (keys are never shown)",
		Example: `  sudo culvert sa list
  sudo culvert sa list --json | jq '.[] | {name, spi, sequence}'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return ask(c, &q, "sas", printSAs) },
	}
	q.add(list)
	c.AddCommand(list)
	return c
}

func printSAs(w io.Writer, sas []control.SA) {
	for i, s := range sas {
		if i > 0 {
			fmt.Fprintln(w)
		}
		esn := ""
		if s.ESN {
			esn = ", ESN"
		}
		fmt.Fprintf(w, "%s  %s  %s  %s → %s  on %s\n", s.Name, s.Direction, s.SPI, s.Src, s.Dst, s.Link)
		if s.Origin == "ike" {
			esn += fmt.Sprintf(", from the IKE daemon, reqid %d", s.Reqid)
		}
		fmt.Fprintf(w, "    %s, %d-bit key, %d-bit ICV%s\n", s.Transform, s.KeyBits, s.ICVBits, esn)
		used := "never used"
		if s.LastUsed != nil {
			used = "last used " + since(*s.LastUsed) + " ago"
		}
		fmt.Fprintf(w, "    sequence %d, packets %d, bytes %d, %s", s.Sequence, s.Packets, s.Bytes, used)
		if s.Direction == "in" {
			fmt.Fprintf(w, "\n    window %d, duplicates %d, too old %d, bad ICV %d", s.ReplayWindow, s.Duplicates, s.TooOld, s.BadICV)
		} else {
			fmt.Fprintf(w, "\n    largest inner packet %d bytes", s.MaxInner)
			if s.MTUIgnored > 0 {
				fmt.Fprintf(w, ", %d messages of a smaller path not believed", s.MTUIgnored)
			}
		}
		if s.Expired {
			fmt.Fprint(w, ", EXPIRED")
		}
		fmt.Fprintln(w)
	}
}

func policyCommand() *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "The policies of the running gateway"}
	var q queryFlags
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the SPD in the order in which it is searched",
		Example: "  sudo culvert policy list",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return ask(c, &q, "policies", printPolicies) },
	}
	q.add(list)
	c.AddCommand(list)
	return c
}

func printPolicies(w io.Writer, pols []control.Policy) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "direction\tpriority\tselector\taction\tSA\tname")
	for _, p := range pols {
		sa := p.SA
		if sa == "" {
			sa = "-"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", p.Direction, p.Priority, p.Selector, p.Action, sa, p.Name)
	}
	t.Flush()
	fmt.Fprintln(w, "What no policy selects is discarded.")
}

func since(t time.Time) string { return time.Since(t).Round(time.Second).String() }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
