package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"culvert/dataplane"
)

// report is the result for a person.
func report(r *result) string {
	var b strings.Builder
	b.WriteString("\n")
	drawing(&b, r)
	b.WriteString("\n")
	settings(&b, r)
	b.WriteString("\n")
	figures(&b, r)
	b.WriteString("\n")
	books(&b, r)
	beside(&b, r)
	fmt.Fprintf(&b, "\nTook %.1f s. Everything that the demo made is removed.\n", r.Total)
	return b.String()
}

var linkNames = map[string]string{"udp": "ESP in UDP", "esp": "ESP"}

// drawing is the row, 80 columns wide, each address below its interface.
func drawing(b *strings.Builder, r *result) {
	caption := fmt.Sprintf("%s, IPv%d", linkNames[r.Link], r.Outer)
	fmt.Fprintf(b, "   host A          gateway A                        gateway B          host B\n")
	fmt.Fprintf(b, "  ┌──────┐      ┌─────────────┐                  ┌─────────────┐      ┌──────┐\n")
	fmt.Fprintf(b, "  │ eth0 ├──────┤ lan0   wan0 ╞══════════════════╡ wan0   lan0 ├──────┤ eth0 │\n")
	fmt.Fprintf(b, "  └──────┘      └─────────────┘%s└─────────────┘      └──────┘\n", center(caption, 18))
	a := r.addrs
	line := []rune(strings.Repeat(" ", 80))
	for _, p := range [...]struct {
		text string
		mid  int // column
	}{{a.ethA, 6}, {a.lanA, 19}, {a.wanA, 30}, {a.wanB, 49}, {a.lanB, 60}, {a.ethB, 73}} {
		place(line, p.text, p.mid)
	}
	fmt.Fprintf(b, "%s\n", strings.TrimRight(string(line), " "))
}

// place writes text centred on a column, moved right as far as it takes to keep a space to what is there.
func place(line []rune, text string, mid int) {
	t := []rune(text)
	at := max(mid-len(t)/2, 0)
	for at > 0 && line[at-1] != ' ' || at < len(line) && line[at] != ' ' {
		at++
	}
	at = min(at, len(line)-len(t))
	copy(line[at:], t)
}

func center(s string, width int) string {
	pad := max(width-len([]rune(s)), 0)
	return strings.Repeat(" ", pad/2) + s + strings.Repeat(" ", pad-pad/2)
}

func settings(b *strings.Builder, r *result) {
	fmt.Fprintf(b, "transform   %s, ", r.Transform)
	if r.KeyBits > 0 {
		fmt.Fprintf(b, "%d-bit key, ", r.KeyBits)
	}
	fmt.Fprintf(b, "%d-bit ICV\n", r.ICVBits)
	workers := "no workers"
	if r.Workers > 0 {
		workers = count(r.Workers, "worker")
	}
	fmt.Fprintf(b, "engine      %s, %s\n", r.Engine, workers)
	fmt.Fprintf(b, "tunnel      IPv%d in %s over IPv%d, inner MTU %d\n", r.Inner, linkNames[r.Link], r.Outer, r.InnerMTU)
	if r.Wire {
		fmt.Fprintln(b, "outer link  real wire: frames of 1500 bytes, as on a cable")
	} else {
		fmt.Fprintln(b, "outer link  veth: passes super-packets of up to 64 KB whole (--wire: 1500-byte frames, as on a cable)")
	}
	fmt.Fprintf(b, "machine     %s, %s, Linux %s, %s\n", r.Machine.CPU, count(r.Machine.Cores, "core"), r.Machine.Kernel, r.Machine.Go)
	if r.Machine.Others >= noticeable {
		fmt.Fprintf(b, "            other programs kept %.1f of its cores busy meanwhile: alone, it does better\n", r.Machine.Others)
	}
}

// noticeable is how many processors other programs may keep busy before it is said.
const noticeable = 0.1

func figures(b *strings.Builder, r *result) {
	fmt.Fprintf(b, "TCP, host A to host B, goodput at the receiver over %g s\n", r.Seconds)
	t := tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tGbit/s\tgateway CPU s/GB\tgateway CPU s\twall s\t")
	for _, row := range r.TCP {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.2f\t\n", count(row.Streams, "stream"), show(row.Gbps, 2), show(row.CPUPerGB, 2), show(row.CPU, 2), row.Wall)
	}
	t.Flush()

	u := r.UDP
	fmt.Fprintf(b, "\nUDP, IP packets of %d bytes: %s\n", smallBytes, searchWords(u))
	if !u.Within {
		fmt.Fprintf(b, "  %s\n", whyNoRate(r))
	}
	t = tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "offered kpps\tdelivered kpps\tlost\tduplicates\treordered\tgateway CPU µs/packet\t")
	fmt.Fprintf(t, "%.1f\t%.1f\t%s\t%d\t%d\t%s\t\n", u.Offered, u.Delivered, percent(u.Loss), u.Duplicates, u.Reordered, show(u.CPUPer, 2))
	t.Flush()
	losses(b, u)
	trials(b, u)

	l := r.Latency
	fmt.Fprintf(b, "\nlatency in µs\n")
	t = tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tp50\tp99\tp99.9\t")
	fmt.Fprintf(t, "round trip, idle (%s, lost %d)\t%s\t%s\t%s\t\n", count(int(l.Samples), "echo"), l.Lost, show(l.P50, 0), show(l.P99, 0), show(l.P999, 0))
	fmt.Fprintf(t, "one way, under the UDP load\t%s\t%s\t%s\t\n", show(u.OneWay.P50, 0), show(u.OneWay.P99, 0), show(u.OneWay.P999, 0))
	t.Flush()
}

// losses says where the packets of the trial were lost that the row is of.
func losses(b *strings.Builder, u udpRow) {
	missing := u.Sent - min(u.Received, u.Sent)
	if missing == 0 {
		fmt.Fprintf(b, "  all %d packets sent were received\n", u.Sent)
		return
	}
	fmt.Fprintf(b, "  %d packets sent, %d lost:\n", u.Sent, missing)
	texts, known := causeTexts(), uint64(0)
	for _, l := range u.LostAt {
		text := texts[l.Cause]
		if text == "" {
			text = kernelCause(l.Cause)
		}
		fmt.Fprintf(b, "    %d at %s: %s\n", l.Packets, l.Where, text)
		known += l.Packets
	}
	if known < missing {
		fmt.Fprintf(b, "    %d that no counter on the way tells apart (a super-packet is counted once)\n", missing-known)
	}
}

// kernelCause says in words what a counter of the kernel's counts.
func kernelCause(cause string) string {
	switch cause {
	case "tun_queue":
		return "the kernel's queue in front of the tunnel's device was full"
	case "tun_rx":
		return "the kernel did not take what the tunnel's device delivered"
	case "socket":
		return "a socket's buffer was full"
	}
	if dev, ok := strings.CutSuffix(cause, "_tx"); ok {
		return dev + " could not send"
	}
	if dev, ok := strings.CutSuffix(cause, "_rx"); ok {
		return dev + " had no room to receive"
	}
	return cause
}

// trials lists the rates that the search tried, with what was lost at each.
func trials(b *strings.Builder, u udpRow) {
	const width = 110
	line := "  rates tried, kpps (lost):"
	for i, t := range u.Tried {
		word := fmt.Sprintf(" %.1f (%s)", t.Offered, percent(t.Loss))
		if i < len(u.Tried)-1 {
			word += ","
		}
		if len(line)+len(word) > width {
			fmt.Fprintln(b, line)
			line = "   "
		}
		line += word
	}
	if len(u.Tried) > 0 {
		fmt.Fprintln(b, line)
	}
}

// searchWords says what a UDP row is.
func searchWords(u udpRow) string {
	const most = mostLost
	switch {
	case !u.Within:
		return "NO RATE FOUND " + most + "; this is the last one tried"
	case u.Limit == limitGenerator:
		return "all that the generator could send on this machine, " + most
	case u.Limit == limitTime:
		return "the highest rate " + most + " that was found in the time; the search was not finished"
	default:
		return "the highest rate " + most
	}
}

const mostLost = "with at most 0.5 % lost"

// whyNoRate says what happened in a search that found none, and what to do.
func whyNoRate(r *result) string {
	lowest := r.UDP.Offered
	for _, t := range r.UDP.Tried {
		lowest = min(lowest, t.Asked)
	}
	what := fmt.Sprintf("Every trial of full length lost more, down to %.1f kpps", lowest)
	if r.Machine.Others >= noticeable {
		return what + fmt.Sprintf(": others kept %.1f of %s busy meanwhile.\n  Run it again when they do not.", r.Machine.Others, count(r.Machine.Cores, "core"))
	}
	return what + ": the machine, or the hypervisor below it, stalls for longer\n  than queues last. Run it again, with a longer --seconds."
}

func percent(fraction float64) string { return fmt.Sprintf("%.2f %%", 100*fraction) }

func books(b *strings.Builder, r *result) {
	t := tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "gateway\tpackets in\tout\tdropped\tbooks\t")
	for _, g := range r.Gateways {
		var dropped uint64
		for _, n := range g.Drops {
			dropped += n
		}
		word := "do NOT balance"
		if g.Balanced {
			word = "balance"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t\n", g.Name, g.In, g.Out, dropped, word)
	}
	t.Flush()
	texts := causeTexts()
	before, overrun := b.Len(), false
	for _, g := range r.Gateways {
		for _, cause := range slices.Sorted(maps.Keys(g.Drops)) {
			fmt.Fprintf(b, "  gateway %s dropped %d: %s", g.Name, g.Drops[cause], cause)
			if text := texts[cause]; text != "" {
				fmt.Fprintf(b, " (%s)", text)
			}
			b.WriteString("\n")
		}
		overrun = overrun || g.Kernel != (kernelDrops{})
		if g.Kernel.TUN > 0 {
			fmt.Fprintf(b, "  the kernel dropped %d in front of gateway %s: its TUN's queue was full\n", g.Kernel.TUN, g.Name)
		}
		if g.Kernel.Socket > 0 {
			fmt.Fprintf(b, "  the kernel dropped %d in front of gateway %s: its outer socket's buffer was full\n", g.Kernel.Socket, g.Name)
		}
	}
	if b.Len() == before {
		fmt.Fprintln(b, "  nothing dropped")
	}
	if overrun {
		fmt.Fprintln(b, "  The search for the highest packet rate overruns the gateways on purpose.")
	}
}

func causeTexts() map[string]string {
	texts := map[string]string{}
	for _, c := range dataplane.Causes() {
		texts[c.String()] = c.Text()
	}
	return texts
}

// balanceWord sums up the books of all gateways.
func balanceWord(rows []gatewayRow) string {
	for _, g := range rows {
		if !g.Balanced {
			return "gateway " + g.Name + "'s do not balance"
		}
	}
	return "balanced"
}

func beside(b *strings.Builder, r *result) {
	for _, o := range r.Beside {
		fmt.Fprintf(b, "\n%s, in the same namespaces, right after\n", besideTitles[o.Name])
		t := tabwriter.NewWriter(b, 0, 0, 3, ' ', tabwriter.AlignRight)
		fmt.Fprintf(t, "\tculvert\t%s\tculvert / %[1]s\t\n", o.Name)
		line := func(what string, digits int, ours, others, ratio figure) {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", what, show(ours, digits), show(others, digits), show(ratio, 2))
		}
		for i, row := range o.TCP {
			line(fmt.Sprintf("TCP, %s, Gbit/s", count(row.Streams, "stream")), 2, r.TCP[i].Gbps, row.Gbps, o.Ratio.TCP[i].Gbps)
		}
		for i, row := range o.TCP {
			if row.CPU != nil {
				line(fmt.Sprintf("gateway CPU s/GB, %s", count(row.Streams, "stream")), 2, r.TCP[i].CPUPerGB, row.CPUPerGB, o.Ratio.TCP[i].CPUPerGB)
			}
		}
		line(fmt.Sprintf("UDP, %d bytes, kpps", smallBytes), 1, &r.UDP.Delivered, &o.UDP.Delivered, o.Ratio.UDP.Delivered)
		line("round trip, idle, p50 µs", 0, r.Latency.P50, o.Latency.P50, o.Ratio.Latency.P50)
		t.Flush()
		if w := searchWords(o.UDP); w != searchWords(r.UDP) {
			fmt.Fprintf(b, "  UDP of %s: %s\n", o.Name, w)
		}
	}
}

var besideTitles = map[string]string{
	besidePlain:     "plain routing by the kernel, no tunnel",
	besideWireGuard: "wireguard-go (ChaCha20-Poly1305)",
}

// count is a number with its noun.
func count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "o"):
		return fmt.Sprintf("%d %ses", n, noun)
	default:
		return fmt.Sprintf("%d %ss", n, noun)
	}
}
