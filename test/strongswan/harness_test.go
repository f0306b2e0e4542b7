package strongswan

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/test/judge"
	"culvert/test/lab"
)

// patience is how long anything may take that is waited for.
const patience = 30 * time.Second

// mark is in the payload of every ping, so that a packet in the clear is known wherever it turns up.
const mark = "\xc0\xff\xee\x5e\xed"

// program is the culvert binary, built once.
var program string

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == bulkCommand {
		if err := bulk(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "culvert-strongswan-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "culvert")
		build := exec.Command("go", "build", "-o", program, "culvert/cmd/culvert")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building culvert: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// long leaves a test out where there is no time for it.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short")
	}
}

// options are what differs between the tests' tunnels.
type options struct {
	both     bool     // culvert on both sides
	proposal string   // of ESP; "" is aes128-sha256
	encap    bool     // UDP encapsulation is forced; kernel-libipsec always does
	start    string   // start_action of side A; "" is none
	child    string   // more lines of the child's section
	conn     string   // more lines of the connection's section
	charon   string   // more lines of the section charon
	local    string   // traffic selectors of side A; "" is the LANs'
	remote   string   // and of side B
	routes   bool     // charon.install_routes
	mobike   bool     // keep mobike on
	ike      []string // more lines of [ike]
	v6       bool     // outer
	command  []string // how charon is started on side A; nil is /usr/lib/ipsec/charon
	anyLocal bool     // side A has no fixed address
}

// world is the row with its gateways.
type world struct {
	*lab.Row
	t *testing.T
	o options
	a *side
	b *side
}

// side is a gateway: its charon, and the culvert under it, if there is one.
type side struct {
	t       *testing.T
	ns      *lab.Namespace
	end     *lab.End
	dir     string
	culvert bool
	command []string // charon's
	gw      *lab.Process
	charon  *lab.Process
	logs    []string
	env     []string // of the gateway, beside the test's own
	daemon  []string // and of charon
	files   []*os.File
	names   string // of files
	ike     string // ike.state_dir; "" is below dir
}

const strongswanConf = `%[1]s {
  load = random nonce aes sha1 sha2 md5 des hmac kdf gcm chapoly ctr ccm pem pkcs1 pkcs8 x509 pubkey curve25519 gmp openssl drbg constraints revocation %[2]s socket-default updown stroke vici
  install_virtual_ip = no
  retransmit_timeout = 1
  retransmit_tries = 3
  delete_rekeyed_delay = 2
  plugins {
    vici { socket = unix://%[3]s/vici }
  }
  filelog { log { path = %[3]s/charon.log
    default = 1
    knl = 2
    flush_line = yes } }
%[4]s
}
`

const swanctlConf = `connections {
  c {
    version = 2
    local_addrs = %[10]s
    remote_addrs = %[2]s
    proposals = aes128-sha256-x25519
    mobike = %[5]s
    encap = %[6]s
%[8]s
    local { auth = psk
      id = %[1]s }
    remote { auth = psk
      id = %[2]s }
    children { net {
      local_ts = %[3]s
      remote_ts = %[4]s
      esp_proposals = %[7]s
%[9]s
    } }
  }
}
secrets { ike-1 { secret = "only for this test" } }
`

// newWorld makes the row and starts all daemons; the tunnel is not up.
func newWorld(t *testing.T, o options) *world {
	t.Helper()
	w := prepare(t, o)
	if w.a.culvert {
		w.a.startGateway()
	}
	if w.b.culvert {
		w.b.startGateway()
	}
	w.a.startCharon()
	w.b.startCharon()
	return w
}

// prepare makes the row and all configurations.
func prepare(t *testing.T, o options) *world {
	t.Helper()
	if err := lab.Usable(); err != nil {
		t.Skip(err)
	}
	judge.Need(t, "swanctl", "ip", "unshare", "/usr/lib/ipsec/charon")
	r, err := lab.NewRow(lab.RowOptions{Wire: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Row: r, t: t, o: o}
	dirs := [2]string{t.TempDir(), t.TempDir()} // which are removed after what follows has shown the logs
	t.Cleanup(func() {
		if t.Failed() {
			for _, s := range []*side{w.a, w.b} {
				s.show()
			}
		}
		// Before the gateways, without which a daemon takes its time to end.
		for _, s := range []*side{w.a, w.b} {
			if s.charon != nil {
				if err := s.charon.Stop(); err != nil {
					t.Logf("%s: %v", s.ns.Role(), err)
				}
			}
		}
		if err := r.Close(); err != nil {
			t.Errorf("removing the lab: %v", err)
		}
	})
	if err := r.RoutePlainly(); err != nil {
		t.Fatal(err)
	}
	w.a = &side{t: t, ns: r.GatewayA, end: r.WanA, dir: dirs[0], culvert: true}
	w.b = &side{t: t, ns: r.GatewayB, end: r.WanB, dir: dirs[1], culvert: o.both}
	w.a.command, w.b.command = []string{"/usr/lib/ipsec/charon"}, []string{"/usr/lib/ipsec/charon"}
	if o.command != nil {
		w.a.command = o.command
	}
	w.configs()
	return w
}

// configs writes the configurations of both sides.
func (w *world) configs() {
	o := w.o
	proposal := o.proposal
	if proposal == "" {
		proposal = "aes128-sha256"
	}
	local, remote := o.local, o.remote
	if local == "" {
		local = lab.LANA[0].String() + "," + lab.LANA[1].String()
	}
	if remote == "" {
		remote = lab.LANB[0].String() + "," + lab.LANB[1].String()
	}
	yes := map[bool]string{true: "yes", false: "no"}
	for i, s := range []*side{w.a, w.b} {
		here, there := w.a.end.Addr(o.v6), w.b.end.Addr(o.v6)
		ts := [2]string{local, remote}
		start := o.start
		if i == 1 {
			here, there = there, here
			ts[0], ts[1] = ts[1], ts[0]
			start = ""
		}
		section := "charon"
		if s.command[0] == "charon-systemd" {
			section = s.command[0]
		}
		from := here.String()
		if o.anyLocal && i == 0 {
			from = "%any"
		}
		child, kernel, conf := o.child, "kernel-netlink", o.charon
		if start != "" {
			child += "\n      start_action = " + start
		}
		if s.culvert {
			conf += "\n  install_routes = " + yes[o.routes]
		} else {
			kernel = "kernel-libipsec kernel-netlink"
		}
		s.write("strongswan.conf", fmt.Sprintf(strongswanConf, section, kernel, s.dir, conf))
		s.write("swanctl.conf", fmt.Sprintf(swanctlConf, here, there, ts[0], ts[1], yes[o.mobike], yes[o.encap], proposal, o.conn, child, from))
		if s.culvert {
			state := s.ike
			if state == "" {
				state = s.dir + "/ike"
			}
			s.write("culvert.toml", fmt.Sprintf("state_dir = %[1]q\ncontrol = %[2]q\nmetrics.listen = \"\"\nlog.level = \"debug\"\n[ike]\nenabled = true\nsocket = %[3]q\nstate_dir = %[4]q\n%[5]s\n",
				s.dir+"/state", s.dir+"/control.sock", s.dir+"/exec.sock", state, strings.Join(o.ike, "\n")))
		}
	}
}

func (s *side) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// read is a file of the side's, by its name in the side's directory or its path.
func (s *side) read(name string) string {
	if !filepath.IsAbs(name) {
		name = filepath.Join(s.dir, name)
	}
	text, _ := os.ReadFile(name)
	return string(text)
}

// show logs the ends of the daemons' logs.
func (s *side) show() {
	if s.gw != nil {
		text, _ := s.run(program, "status", "--control", s.dir+"/control.sock")
		s.t.Logf("%s culvert status:\n%s", s.ns.Role(), text)
	}
	for _, f := range append(s.logs, s.dir+"/charon.log") {
		text, _ := os.ReadFile(f)
		s.t.Logf("%s %s:\n%s", s.ns.Role(), filepath.Base(f), tail(text, 5000))
	}
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		return append([]byte("… "), b[len(b)-n:]...)
	}
	return b
}

// background starts a program in a namespace. Its output is in the file.
func (s *side) background(name string, args ...string) (p *lab.Process, file string) {
	s.t.Helper()
	file = filepath.Join(s.dir, fmt.Sprintf("%s.%d.log", filepath.Base(name), len(s.logs)))
	out, err := os.Create(file)
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Close()
	s.logs = append(s.logs, file)
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "STRONGSWAN_CONF="+s.dir+"/strongswan.conf", "SWANCTL_DIR="+s.dir)
	if name == "unshare" {
		cmd.Env = append(cmd.Env, s.daemon...)
	}
	if name == program || s.files != nil {
		cmd.Env, cmd.ExtraFiles = append(cmd.Env, s.env...), s.files
	}
	if p, err = s.ns.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	return p, file
}

// startGateway starts culvert and waits until it serves.
func (s *side) startGateway() {
	s.t.Helper()
	args := []string{program, "run", "-c", s.dir + "/culvert.toml"}
	if s.files != nil {
		args = append([]string{"sh", "-c", fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s exec "$@"`, len(s.files), s.names), "sh"}, args...)
	}
	p, log := s.background(args[0], args[1:]...)
	s.gw, s.files = p, nil
	until(s.t, "the gateway is ready", func() bool {
		select {
		case <-p.Done():
			s.t.Fatalf("culvert in %s ended by itself: %v", s.ns.Role(), p.Err())
		default:
		}
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "msg=ready")
	})
}

// startCharon starts charon, under the gateway if there is one, and waits until it has its connections.
func (s *side) startCharon() {
	s.t.Helper()
	os.Remove(s.dir + "/vici")
	args := []string{"-m", "sh", "-c", `mount -t tmpfs tmpfs /run && exec "$@"`, "sh"}
	if s.culvert {
		args = append(args, program, "exec", "--socket", s.dir+"/exec.sock", "--")
	}
	s.charon, _ = s.background("unshare", append(args, s.command...)...)
	s.load()
}

// load has charon take its configuration.
func (s *side) load() {
	s.t.Helper()
	until(s.t, "charon takes its connection", func() bool {
		select {
		case <-s.charon.Done():
			s.t.Fatalf("charon in %s ended by itself: %v", s.ns.Role(), s.charon.Err())
		default:
		}
		out, _ := s.swanctl("--load-all", "--file", s.dir+"/swanctl.conf")
		return strings.Contains(out, "successfully loaded 1")
	})
}

// run runs a command in the gateway's namespace.
func (s *side) run(name string, args ...string) (string, error) {
	return output(s.t, s.ns, s.dir, name, args...)
}

func (s *side) swanctl(args ...string) (string, error) {
	return s.run("timeout", slices.Concat([]string{"30", "swanctl"}, args, []string{"--uri", "unix://" + s.dir + "/vici"})...)
}

// must is swanctl, which must succeed.
func (s *side) must(args ...string) string {
	s.t.Helper()
	out, err := s.swanctl(args...)
	if err != nil {
		s.t.Fatalf("swanctl %s in %s: %v\n%s", strings.Join(args, " "), s.ns.Role(), err, out)
	}
	return out
}

// culvertSays runs a command of the binary against the gateway's control socket.
func (s *side) culvertSays(args ...string) string {
	s.t.Helper()
	out, err := s.run(program, append(args, "--control", s.dir+"/control.sock")...)
	if err != nil {
		s.t.Fatalf("culvert %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// status is what of `culvert status --json` the tests look at.
type status struct {
	IKE struct {
		SAs      int
		Policies int
		Routed   int
		Refused  []string
		Failures int
		Acquires int
		Notice   string
		Ports    []struct{ Address string }
		Clients  []struct{ Program string }
	}
	Lanes []struct {
		Name     string
		In       uint64 `json:"packets_in"`
		Out      uint64 `json:"packets_out"`
		Balanced bool
		Drops    map[string]uint64
	}
	Balanced bool
}

func (s *side) status() (st status) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.culvertSays("status", "--json")), &st); err != nil {
		s.t.Fatal(err)
	}
	return st
}

// kill ends a process as a crash would.
func kill(t *testing.T, p *lab.Process) {
	t.Helper()
	end(t, p, syscall.SIGKILL)
}

func end(t *testing.T, p *lab.Process, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.Pid(), sig); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("a process does not end %v after %v", patience, sig)
	}
}

var espSPI = regexp.MustCompile(`(?m)^    in  (\w+),`)

// installed is the inbound SPIs of all installed CHILD_SAs.
func (s *side) installed() []string {
	out, _ := s.swanctl("--list-sas")
	var spis []string
	if strings.Count(out, "INSTALLED") == 0 {
		return nil
	}
	for _, m := range espSPI.FindAllStringSubmatch(out, -1) {
		spis = append(spis, m[1])
	}
	return spis
}

// configure gives both sides another tunnel, which is loaded.
func (w *world) configure(o options) {
	w.t.Helper()
	w.o = o
	w.configs()
	w.a.load()
	w.b.load()
}

// down terminates the tunnel, and waits until nothing of it is left.
func (w *world) down() {
	w.t.Helper()
	w.a.must("--terminate", "--ike", "c")
	until(w.t, "nothing of the tunnel is left", func() bool { return w.a.status().IKE.SAs == 0 && len(w.b.installed()) == 0 })
}

// up initiates the tunnel from side A.
func (w *world) up() {
	w.t.Helper()
	w.a.must("--initiate", "--child", "net", "--timeout", "20")
	for _, s := range []*side{w.a, w.b} {
		until(w.t, "the CHILD_SA is installed", func() bool { return len(s.installed()) == 1 })
	}
}

// output runs a program in a namespace and gives what it prints.
func output(t *testing.T, ns *lab.Namespace, dir, name string, args ...string) (string, error) {
	t.Helper()
	file, err := os.CreateTemp(dir, "out")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(os.Environ(), "STRONGSWAN_CONF="+dir+"/strongswan.conf", "SWANCTL_DIR="+dir, "LC_ALL=C")
	p, err := ns.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(2 * patience):
		t.Fatalf("%s does not end", name)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), p.Err()
}

// until polls for what takes its time.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v, and it is not so that %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ping sends echo requests with the mark and wants an answer to each of the first count. It goes on sending until there are that many,
// since ping would else give up on a late one after twice the time that the others took.
func (w *world) ping(from, to *lab.End, v6 bool, count int) {
	w.t.Helper()
	out, _ := output(w.t, from.NS, w.a.dir, "ping", "-n", "-c", strconv.Itoa(count), "-w", strconv.Itoa(int(patience.Seconds())), "-i", "0.02",
		"-p", fmt.Sprintf("%x", mark), to.Addr(v6).String())
	for i := range count {
		if !strings.Contains(out, fmt.Sprintf("icmp_seq=%d ttl", i+1)) {
			w.t.Errorf("ping from %s to %s has no answer to request %d:\n%s", from.NS.Role(), to.Addr(v6), i+1, tail([]byte(out), 600))
			return
		}
	}
}

// stream is a flood of pings that runs until it is ended.
type stream struct {
	t    *testing.T
	p    *lab.Process
	file string
}

// flow sends pings, one each 5 ms, until stop.
func (w *world) flow(from, to *lab.End, v6 bool) *stream {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "ping")
	out, err := os.Create(file)
	if err != nil {
		w.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("ping", "-n", "-i", "0.005", "-W", "5", "-p", fmt.Sprintf("%x", mark), to.Addr(v6).String())
	cmd.Stdout, cmd.Stderr = out, out
	p, err := from.NS.Start(cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	return &stream{w.t, p, file}
}

var sentReceived = regexp.MustCompile(`(\d+) packets transmitted, (\d+) (packets )?received`)

// stop ends the stream and says what was sent and received. The last ones may still have been on their way.
func (s *stream) stop() (sent, received int) {
	s.t.Helper()
	syscall.Kill(s.p.Pid(), syscall.SIGINT)
	select {
	case <-s.p.Done():
	case <-time.After(patience):
		s.t.Fatal("ping does not end")
	}
	text, err := os.ReadFile(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	m := sentReceived.FindStringSubmatch(string(text))
	if m == nil {
		s.t.Fatalf("ping says %s", tail(text, 500))
	}
	sent, _ = strconv.Atoi(m[1])
	received, _ = strconv.Atoi(m[2])
	return sent, received
}

var answer = regexp.MustCompile(`icmp_seq=(\d+) (hlim|ttl)=`)

// lossless ends the stream and fails the test if an answer is missing, but for those that were on their way at the end: none came
// after them.
func (s *stream) lossless(what string) {
	s.t.Helper()
	sent, received := s.stop()
	text, err := os.ReadFile(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	have, last := map[int]bool{}, 0
	for _, m := range answer.FindAllStringSubmatch(string(text), -1) {
		n, _ := strconv.Atoi(m[1])
		have[n], last = true, max(last, n)
	}
	var lost []int
	for n := 1; n < last; n++ {
		if !have[n] {
			lost = append(lost, n)
		}
	}
	const onTheWay = 40 // 200 ms
	if sent < 20 || len(have) != received || len(lost) > 0 || last < sent-onTheWay {
		s.t.Errorf("%s: %d packets were sent, %d answered, the last answer is to %d; lost: %v\n%s", what, sent, received, last, lost, tail(text, 300))
	}
	s.t.Logf("%s: %d packets were sent, and %d answered", what, sent, received)
}

// sendFile carries n random bytes over TCP, and compares their checksums.
func (w *world) sendFile(from, to *lab.End, v6 bool, n int64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	at := netip.AddrPortFrom(to.Addr(v6), 9999).String()
	l, err := to.NS.Listen(ctx, "tcp", at)
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	received := make(chan error, 1)
	go func() {
		received <- func() error {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * patience))
			h := sha256.New()
			if _, err := io.CopyN(h, c, n); err != nil {
				return err
			}
			_, err = c.Write(h.Sum(nil))
			return err
		}()
	}()
	c, err := from.NS.Dial(ctx, "tcp", at)
	if err != nil {
		w.t.Fatalf("connecting to %s through the tunnel: %v", at, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * patience))
	h := sha256.New()
	random := rand.NewChaCha8([32]byte{byte(n)})
	if _, err := io.CopyN(io.MultiWriter(c, h), random, n); err != nil {
		w.t.Fatalf("sending to %s: %v", at, err)
	}
	theirs := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, theirs); err != nil {
		w.t.Fatalf("receiving the checksum from %s: %v", at, errors.Join(err, <-received))
	}
	if string(theirs) != string(h.Sum(nil)) {
		w.t.Errorf("the file arrived at %s with another SHA-256 than it left with", at)
	}
}

// capture is a running tcpdump on the wire between the gateways.
type capture struct {
	t    *testing.T
	p    *lab.Process
	pcap string
	log  string
}

func (w *world) capture() *capture {
	w.t.Helper()
	judge.Need(w.t, "tcpdump")
	dir := w.t.TempDir()
	c := &capture{t: w.t, pcap: dir + "/wire.pcap", log: dir + "/log"}
	out, err := os.Create(c.log)
	if err != nil {
		w.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("tcpdump", "-i", lab.WANDevice, "-w", c.pcap, "-U", "--immediate-mode", "-n", "-Z", "root", "-B", "65536")
	cmd.Stdout, cmd.Stderr = out, out
	if c.p, err = w.GatewayB.Start(cmd); err != nil {
		w.t.Fatal(err)
	}
	until(w.t, "tcpdump listens", func() bool {
		text, _ := os.ReadFile(c.log)
		return strings.Contains(string(text), "listening on")
	})
	return c
}

// clearFrom ends the capture, and gives how many packets with the mark in clear come from an end, and how many packets there are.
func (c *capture) clearFrom(e *lab.End) (clear, all int) {
	c.t.Helper()
	for _, p := range c.stop() {
		all++
		if !strings.Contains(string(p), mark) {
			continue
		}
		for _, a := range e.Addrs {
			b := a.Addr().AsSlice()
			if at := map[int]int{4: 12, 16: 8}[len(b)]; len(p) >= at+len(b) && string(p[at:at+len(b)]) == string(b) {
				clear++
			}
		}
	}
	return clear, all
}

// clear ends the capture, and gives how many packets of it have the mark in clear, and how many there are.
func (c *capture) clear() (clear, all int) {
	c.t.Helper()
	packets := c.stop()
	for _, p := range packets {
		if strings.Contains(string(p), mark) {
			clear++
		}
	}
	return clear, len(packets)
}

func (c *capture) stop() [][]byte {
	c.t.Helper()
	time.Sleep(50 * time.Millisecond) // for what the kernel has not handed over yet
	syscall.Kill(c.p.Pid(), syscall.SIGINT)
	<-c.p.Done()
	text, _ := os.ReadFile(c.log)
	if !strings.Contains(string(text), "\n0 packets dropped by kernel") {
		c.t.Fatalf("tcpdump did not see everything: %s", text)
	}
	packets, err := judge.ReadPcap(c.pcap)
	if err != nil {
		c.t.Fatal(err)
	}
	return packets
}
