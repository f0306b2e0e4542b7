package strongswan

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/test/lab"
	"culvert/xfrm"
)

// bulkCommand makes the test binary a program under culvert exec, which is bulk.
const bulkCommand = "install-tunnels"

// bulk installs as many tunnels as an argument says, as an IKE daemon would, over one socket and each message after the acknowledgement of
// the one before: two SAs and three policies for each. It prints the seconds for the SAs and for the policies.

func bulk(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_XFRM)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 8192)
	ask := func(b []byte) error {
		if _, err := unix.Write(fd, b); err != nil {
			return err
		}
		m, err := unix.Read(fd, buf)
		if err != nil {
			return err
		}
		if m < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
			return fmt.Errorf("not an acknowledgement: %x", buf[:m])
		}
		if e := int32(binary.NativeEndian.Uint32(buf[unix.NLMSG_HDRLEN:])); e != 0 {
			return unix.Errno(-e)
		}
		return nil
	}
	here := netip.MustParseAddr("192.0.2.1")
	there := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }
	const flags = unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	limits := xfrm.Limits{SoftBytes: xfrm.Inf, HardBytes: xfrm.Inf, SoftPackets: xfrm.Inf, HardPackets: xfrm.Inf}
	began := time.Now()
	for i := range n {
		for dir, ends := range [2][2]netip.Addr{{there(i), here}, {here, there(i)}} {
			key := make([]byte, 20)
			binary.BigEndian.PutUint32(key, uint32(2*i+dir+1))
			m := &xfrm.SA{SAInfo: xfrm.SAInfo{
				Src: addressOf(ends[0]), Dst: addressOf(ends[1]), SPI: uint32(0x10000*(dir+1) + i), Proto: xfrm.ProtoESP, Family: xfrm.FamilyIPv4,
				Mode: xfrm.ModeTunnel, Reqid: uint32(i + 1), Limits: limits, Flags: xfrm.StateAFUnspec, Window: 32,
			}}
			m.Attrs.AEAD = xfrm.NewAlgo("rfc4106(gcm(aes))", 128, key)
			if err := ask(m.Append(nil, xfrm.MsgNewSA, flags, uint32(i), 0)); err != nil {
				return fmt.Errorf("SA %d: %w", i, err)
			}
		}
	}
	sas := time.Since(began)
	began = time.Now()
	local := netip.MustParsePrefix("10.1.0.0/16")
	for i := range n {
		remote := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(2 + i>>8), byte(i), 0}), 24)
		for _, dir := range []uint8{xfrm.DirIn, xfrm.DirFwd, xfrm.DirOut} {
			src, dst, from, to, spi := remote, local, there(i), here, uint32(0)
			if dir == xfrm.DirOut {
				src, dst, from, to, spi = local, remote, here, there(i), uint32(0x20000+i)
			}
			m := &xfrm.Policy{
				PolicyInfo: xfrm.PolicyInfo{Sel: xfrm.SelectorOf(src, dst), Limits: limits, Priority: 1000, Dir: dir},
				Attrs: xfrm.Attrs{Tmpls: []xfrm.Tmpl{{Src: addressOf(from), Dst: addressOf(to), SPI: spi, Proto: xfrm.ProtoESP, Family: xfrm.FamilyIPv4,
					Reqid: uint32(i + 1), Mode: xfrm.ModeTunnel, AAlgos: ^uint32(0), EAlgos: ^uint32(0), CAlgos: ^uint32(0)}}},
			}
			if err := ask(m.Append(nil, xfrm.MsgNewPolicy, flags, uint32(i), 0)); err != nil {
				return fmt.Errorf("policy %d: %w", i, err)
			}
		}
	}
	fmt.Println(sas.Seconds(), time.Since(began).Seconds())
	return nil
}

func addressOf(a netip.Addr) xfrm.Address {
	b, _ := xfrm.AddressOf(a)
	return b
}

// install runs bulk under the gateway.
func (w *world) install(n int) (sas, policies float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	out, err := w.a.run(program, "exec", "--socket", w.a.dir+"/exec.sock", "--", self, bulkCommand, strconv.Itoa(n))
	if err != nil {
		return 0, 0, errors.Join(err, errors.New(out))
	}
	_, err = fmt.Sscan(strings.TrimSpace(out), &sas, &policies)
	return sas, policies, err
}

var thousands = flag.Int("tunnels", 1500, "how many tunnels TestStrongSwanThousands installs, up to 60000")

// A program that installs thousands of tunnels over one socket gets an acknowledgement for each message, and all of it is there: in the
// lists and in the host's routes.
func TestStrongSwanThousands(t *testing.T) {
	long(t)
	w := prepare(t, options{})
	var err error
	if w.a.ike, err = os.MkdirTemp("/dev/shm", "culvert-test-"); err != nil { // in memory, as the usual one in /run
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(w.a.ike) })
	w.configs()
	w.a.startGateway()
	n := *thousands
	sas, policies, err := w.install(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d SAs in %.2f s, %.0f µs each; %d policies in %.2f s, %.0f µs each", 2*n, sas, sas/float64(2*n)*1e6, 3*n, policies, policies/float64(3*n)*1e6)
	if st := w.a.status(); st.IKE.SAs != 2*n || st.IKE.Policies != 2*n || st.IKE.Routed != n || st.IKE.Failures != 0 {
		t.Errorf("status %+v", st.IKE)
	}
	for what, want := range map[string]int{"state": 2 * n, "policy": 3 * n} {
		out, err := w.a.run(program, "exec", "--socket", w.a.dir+"/exec.sock", "--", "ip", "xfrm", what, "list")
		if got := strings.Count(out, "proto esp"); err != nil || got != want {
			t.Errorf("ip xfrm %s list: %v, %d of %d", what, err, got, want)
		}
	}
	out, err := output(t, w.GatewayA, w.a.dir, "ip", "route", "show", "table", "4304")
	if got := strings.Count(out, "dev culvert0"); err != nil || got != n {
		t.Errorf("%d routes into the TUN, want %d: %v", got, n, err)
	}
}

// Three hundred clients that are killed, some while they listen for events and some in the middle of a long list, leave no descriptor, no
// socket and no goroutine of the gateway behind.
func TestStrongSwanKilledClients(t *testing.T) {
	long(t)
	w := prepare(t, options{})
	text := strings.Replace(w.a.read("culvert.toml"), `metrics.listen = ""`, `metrics.listen = "127.0.0.1:9750"`, 1)
	w.a.write("culvert.toml", text)
	w.a.startGateway()
	if _, _, err := w.install(300); err != nil {
		t.Fatal(err)
	}
	goroutines := regexp.MustCompile(`(?m)^go_goroutines (\d+)`)
	count := func() (files, routines int) {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.a.gw.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		out, _ := w.a.run("curl", "-s", "http://127.0.0.1:9750/metrics")
		m := goroutines.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("the metrics do not tell the goroutines: %s", tail([]byte(out), 300))
		}
		routines, _ = strconv.Atoi(m[1])
		return len(fds), routines
	}
	const batch = 30
	clients := func() {
		var all []*lab.Process
		for i := range batch {
			command := []string{"ip", "xfrm", "monitor"}
			if i%2 == 1 {
				command = []string{"sh", "-c", "ip xfrm state list | sleep 60"} // which does not read
			}
			cmd := exec.Command(program, slices.Concat([]string{"exec", "--socket", w.a.dir + "/exec.sock", "--"}, command)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			p, err := w.a.ns.Start(cmd)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		until(t, "the clients have their sockets", func() bool { return len(w.a.status().IKE.Clients) == batch })
		for _, p := range all {
			syscall.Kill(-p.Pid(), syscall.SIGKILL)
		}
		for _, p := range all {
			<-p.Done()
		}
		until(t, "the clients have gone", func() bool { return len(w.a.status().IKE.Clients) == 0 })
	}
	clients() // what is made once is made
	files, routines := count()
	for range 300 / batch {
		clients()
	}
	until(t, "descriptors and goroutines are as many as before", func() bool {
		f, r := count()
		return f <= files && r <= routines+2 // a request for the metrics has some
	})
	if st := w.a.status(); st.IKE.Failures != 0 || st.IKE.SAs != 600 {
		t.Errorf("%+v", st.IKE)
	}
}
