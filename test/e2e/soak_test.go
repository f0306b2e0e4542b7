package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/test/judge"
	"culvert/test/lab"
)

// soak is how long TestSoak loads the gateways: go test ./test/e2e -run Soak -soak 10m. test/run sets its default through the environment.
var soak = flag.Duration("soak", soakDefault(), "how long the load of TestSoak lasts")

func soakDefault() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("CULVERT_SOAK")); err == nil {
		return d
	}
	return 10 * time.Second
}

// sample is what a gateway uses at one moment.
type sample struct{ rss, heap, goroutines, fds float64 }

// uses are the parts of a sample, with the growth that is noise. The heap is judged by the size at which the next collection begins: a
// little more than what was alive at the last one, as the gateways collect often here, and without the sawtooth in between, in which the
// resident set has its share. What a request for metrics holds while the collector runs makes it differ by some 0.9 MB. A leak of one
// byte per packet is some 100,000 bytes a second: minutes show it.
var uses = []struct {
	name  string
	of    func(sample) float64
	noise func(before float64) float64
}{
	{"resident memory", func(s sample) float64 { return s.rss }, func(b float64) float64 { return 8<<20 + b/10 }},
	{"heap", func(s sample) float64 { return s.heap }, func(float64) float64 { return 2 << 20 }},
	{"goroutines", func(s sample) float64 { return s.goroutines }, func(float64) float64 { return 2 }}, // of the query itself
	{"open files", func(s sample) float64 { return s.fds }, func(float64) float64 { return 2 }},
}

// Under load in both directions, TCP and UDP, for as long as -soak says, neither gateway grows: not in resident memory, heap,
// goroutines or open files, between the second and the last quarter of the time. All the while the books balance.
func TestSoak(t *testing.T) {
	judge.Need(t, "iperf3")
	w := newRow(t, lab.RowOptions{})
	w.configure("[log]\nlevel = \"info\"\n", ordinary("office", "udp", false, gcm))
	for _, g := range []*gateway{w.a, w.b} {
		text, err := os.ReadFile(g.config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(g.config, []byte(strings.Replace(string(text), `listen = ""`, `listen = "127.0.0.1:9750"`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Collections so frequent that the heap is what is alive, nearly: with the default the next one begins at twice that, so
	// whatever a request of these tests held at the moment of the last one counts double, until there is another.
	t.Setenv("GOGC", "5")
	w.start()

	seconds := strconv.Itoa(int(soak.Seconds()) + 1)
	var clients []*lab.Process
	for i, args := range [][]string{{"-P", "4"}, {"-R", "-P", "2"}, {"-u", "-b", "20M", "-l", "200"}} {
		port := strconv.Itoa(5201 + i)
		to := w.EthB.Addr(i == 1).String()
		_, stdout, _ := background(t, w.HostB, "iperf3", "-s", "-1", "--forceflush", "-B", to, "-p", port)
		listening(t, stdout, "Server listening")
		p, _, _ := background(t, w.HostA, "iperf3", append([]string{"-c", to, "-p", port, "-t", seconds}, args...)...)
		clients = append(clients, p)
	}

	samples := map[*gateway][]sample{}
	begin := time.Now()
	for every := time.NewTicker(max(200*time.Millisecond, *soak/500)); time.Since(begin) < *soak; <-every.C {
		for _, g := range []*gateway{w.a, w.b} {
			samples[g] = append(samples[g], g.sample(t))
		}
	}
	for _, p := range clients {
		select {
		case <-p.Done():
			if p.Err() != nil {
				t.Errorf("iperf3: %v", p.Err())
			}
		case <-time.After(patience):
			t.Errorf("iperf3 has not ended")
			syscall.Kill(p.Pid(), syscall.SIGKILL)
		}
	}
	w.balance()
	for _, g := range []*gateway{w.a, w.b} {
		all := samples[g]
		if len(all) < 8 {
			t.Fatalf("%d samples are too few", len(all))
		}
		for _, u := range uses {
			before, after := median(all[len(all)/4:len(all)/2], u.of), median(all[len(all)*3/4:], u.of)
			t.Logf("%s: %s %.0f, then %.0f", g.ns.Role(), u.name, before, after)
			if after > before+u.noise(before) {
				t.Errorf("%s: %s grew from %.0f to %.0f in %v", g.ns.Role(), u.name, before, after, *soak*5/8)
			}
		}
		for _, l := range g.status().Lanes {
			t.Logf("%s: lane %s: %d packets in, %d out, drops %v", g.ns.Role(), l.Name, l.PacketsIn, l.PacketsOut, l.Drops)
			if l.PacketsOut < uint64(soak.Seconds())*1000 && l.PacketsIn > 0 {
				t.Errorf("lane %s passed %d packets on in %v: that is no load", l.Name, l.PacketsOut, *soak)
			}
		}
	}
}

func median(all []sample, of func(sample) float64) float64 {
	var v []float64
	for _, s := range all {
		v = append(v, of(s))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// sample asks the kernel and the gateway's metrics.
func (g *gateway) sample(t *testing.T) (s sample) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.proc.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(kb)[0])
			if err != nil {
				t.Fatal(err)
			}
			s.rss = float64(n) * 1024
		}
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return g.ns.Dial(ctx, network, address)
		},
	}}
	r, err := client.Get("http://127.0.0.1:9750/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	into := map[string]*float64{"go_memstats_next_gc_bytes": &s.heap, "go_goroutines": &s.goroutines, "process_open_fds": &s.fds}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && into[name] != nil {
			if *into[name], err = strconv.ParseFloat(value, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.rss == 0 || s.heap == 0 || s.goroutines == 0 || s.fds == 0 {
		t.Fatalf("incomplete sample: %+v", s)
	}
	return s
}
