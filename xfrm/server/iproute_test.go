package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// seam is a server that programs reach through testdata/seam.c.
type seam struct {
	tb  testing.TB
	s   *Server
	lib string
	dir string
}

func newSeam(tb testing.TB, s *Server) *seam {
	tb.Helper()
	x := &seam{tb: tb, s: s, dir: tb.TempDir()}
	x.lib = filepath.Join(x.dir, "seam.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-o", x.lib, "testdata/seam.c", "-ldl").CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, out)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(x.dir, "s"), Net: "unixpacket"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				var groups [4]byte // what bind says comes first
				if n, err := conn.Read(groups[:]); err != nil || n != 4 {
					conn.Close()
					return
				}
				raw, err := conn.SyscallConn()
				if err != nil {
					return
				}
				var who *unix.Ucred // seam.c says the process's ID to be the port
				if raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
					return
				}
				c, err := s.Attach(conn, Peer{PID: who.Pid, Comm: "ip"})
				if err != nil {
					return
				}
				c.SetGroups(binary.NativeEndian.Uint32(groups[:]))
				_ = c.Option(unix.NETLINK_EXT_ACK, 1)
				_ = c.Option(unix.NETLINK_CAP_ACK, 1)
			}()
		}
	}()
	return x
}

func (x *seam) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(x.tb.Context(), 20*time.Second)
	x.tb.Cleanup(cancel)
	c := exec.CommandContext(ctx, "ip", args...)
	c.WaitDelay = time.Second
	c.Env = append(os.Environ(), "LD_PRELOAD="+x.lib, "CULVERT_TEST_SERVER="+filepath.Join(x.dir, "s"))
	return c
}

// ip runs a command against the server and gives what it prints, errors too.
func (x *seam) ip(args ...string) string {
	out, err := x.command(args...).CombinedOutput()
	return result(out, err)
}

// result is output and exit status, without what is our own wording.
func result(out []byte, err error) string {
	s := string(out)
	s = regexp.MustCompile(`(?m)^Error: .*$`).ReplaceAllString(s, "Error: …")
	if err != nil {
		s += err.Error()
	}
	return s
}

// Real iproute2 prints of the server what it prints of the kernel, for what this machine's kernel can do.
func TestIproute2AsTheKernel(t *testing.T) {
	ns := fmt.Sprintf("culvert-xfrm-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v\n%s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "delete", ns).Run() })
	x := newSeam(t, newServer(t, Config{AcquireExpires: 30 * time.Second}))
	monitors := [2]*bytes.Buffer{{}, {}}
	var running []*exec.Cmd
	for i, c := range []*exec.Cmd{exec.CommandContext(t.Context(), "ip", "netns", "exec", ns, "ip", "xfrm", "monitor"), x.command("xfrm", "monitor")} {
		c.Stdout, c.Stderr = monitors[i], monitors[i]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, c)
	}
	for end := time.Now().Add(5 * time.Second); len(x.s.Clients()) == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond) // the kernel's monitor says nothing of having begun
	out, in := "dir out src 10.1.0.0/16 dst 10.2.0.0/16", "dir in src 10.2.0.0/16 dst 10.1.0.0/16"
	tmpl := "tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 7 mode tunnel"
	for _, line := range []string{
		"xfrm policy list", "xfrm state list", "xfrm state count", "xfrm policy count",
		"xfrm policy add " + out + " " + tmpl,
		"xfrm policy add " + out + " " + tmpl,
		"xfrm policy add " + in + " priority 5 tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 7 mode tunnel level use",
		"xfrm policy add dir fwd src 10.2.0.0/16 dst 10.1.0.0/16 tmpl src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1234 mode tunnel",
		"xfrm policy add dir out src 2001:db8:1::/48 dst ::/0 proto tcp dport 443 action block",
		"xfrm policy add dir out src 10.1.0.0/16 dst 10.3.0.0/16 mark 5 mask 0xff if_id 9 " + tmpl,
		"xfrm policy add dir out src 10.1.0.0/16 dst 10.4.0.0/16 index 1025 limit time-soft 3600 limit time-hard 7200 " + tmpl,
		"xfrm policy list", "xfrm policy count",
		"xfrm policy update " + out + " priority 77 " + tmpl + " " + tmpl,
		"xfrm policy get " + out,
		"xfrm policy get " + out + " mark 5",
		"xfrm policy get dir out src 10.1.0.0/16 dst 10.3.0.0/16 mark 5 mask 0xff if_id 9",
		"xfrm policy get dir out index 1025",
		"xfrm policy delete dir out index 1025",
		"xfrm policy delete dir out index 1025",
		"xfrm policy delete " + in,
		"xfrm policy getdefault", "xfrm policy setdefault in block out block", "xfrm policy getdefault", "xfrm policy setdefault in accept out accept",
		"xfrm policy set hthresh4 24 32", "xfrm policy count",
		"xfrm state allocspi src 192.0.2.2 dst 192.0.2.1 proto esp mode tunnel reqid 7 min 0x4000 max 0x4000",
		"xfrm state allocspi src 192.0.2.2 dst 192.0.2.1 proto esp mode tunnel reqid 7 min 0x4000 max 0x4000",
		"xfrm state allocspi src 2001:db8::2 dst 2001:db8::1 proto ah mode transport reqid 8 mark 3 min 0x5000 max 0x5000",
		"xfrm state list", "xfrm state list proto ah", "xfrm state list src 192.0.2.2", "xfrm state count", "-s xfrm state list",
		"xfrm state get src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x4000",
		"xfrm state get src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x4001",
		"xfrm state delete src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x4000",
		"xfrm state delete src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x4000",
		"xfrm state deleteall", "xfrm state list", "xfrm state flush", "xfrm state flush",
		"xfrm policy deleteall dir fwd", "xfrm policy list", "xfrm policy flush", "xfrm policy list",
	} {
		args := strings.Fields(line)
		want, err := exec.Command("ip", append([]string{"netns", "exec", ns, "ip"}, args...)...).CombinedOutput()
		w, g := stable(result(want, err)), stable(x.ip(args...))
		if w != g {
			t.Errorf("ip %s prints of the kernel:\n%s\nand of the server:\n%s", line, w, g)
		}
	}
	time.Sleep(300 * time.Millisecond)
	for _, c := range running {
		c.Process.Kill()
		c.Wait()
	}
	if w, g := stable(monitors[0].String()), stable(monitors[1].String()); w != g || w == "" {
		t.Errorf("ip xfrm monitor prints of the kernel:\n%s\nand of the server:\n%s", w, g)
	}
}

// stable is output without what differs from run to run: times, and the rows of hash tables.
func stable(s string) string {
	s = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(s, "<time>")
	return regexp.MustCompile(`(?i)buckets count \d+`).ReplaceAllString(s, "buckets count N")
}

// What iproute2 adds to a data plane it lists, with the words of a kernel that has ESP, and the SA does what was said.
func TestIproute2ManagesSAs(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	x := newSeam(t, p.Server)
	run := func(line string) string {
		t.Helper()
		return x.ip(strings.Fields(line)...)
	}
	key := "0x" + strings.Repeat("11", 16)
	auth := "0x" + strings.Repeat("22", 32)
	for _, line := range []string{
		"xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 reqid 7 mode tunnel auth-trunc hmac(sha256) " + auth + " 128 enc cbc(aes) " + key +
			" encap espinudp 4500 4500 0.0.0.0",
		"xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002 reqid 7 mode tunnel flag esn replay-window 128 aead rfc4106(gcm(aes)) 0x" +
			strings.Repeat("33", 20) + " 128",
		"xfrm policy add dir out src 10.1.0.0/16 dst 10.2.0.0/16 tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 7 mode tunnel",
	} {
		if got := run(line); got != "" {
			t.Fatalf("ip %s: %s", line, got)
		}
	}
	if o := p.outFor(t, "10.2.0.9"); o == nil || o.Params().SPI != 0x1001 || o.Params().DstPort != 4500 {
		t.Errorf("the policy uses %v", o)
	}
	got := run("xfrm state list")
	want := `src 192.0.2.2 dst 192.0.2.1
	proto esp spi 0x00001002 reqid 7 mode tunnel
	replay-window 0 flag esn
	aead rfc4106(gcm(aes)) 0x3333333333333333333333333333333333333333 128
	anti-replay esn context:
	 seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0
	 replay_window 128, bitmap-length 4
	 00000000 00000000 00000000 00000000 
	sel src 0.0.0.0/0 dst 0.0.0.0/0 
src 192.0.2.1 dst 192.0.2.2
	proto esp spi 0x00001001 reqid 7 mode tunnel
	replay-window 0 
	auth-trunc hmac(sha256) ` + auth + ` 128
	enc cbc(aes) ` + key + `
	encap type espinudp sport 4500 dport 4500 addr 0.0.0.0
	anti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000
	sel src 0.0.0.0/0 dst 0.0.0.0/0 
`
	if trim(got) != trim(want) {
		t.Errorf("ip xfrm state list prints\n%s\nwant\n%s", got, want)
	}
	if got := run("xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001 mode tunnel enc cbc(aes) " + key); !strings.Contains(got, "exit status 2") {
		t.Errorf("encryption without authentication: %s", got)
	}
}

// trim is lines without the blanks at their ends.
func trim(s string) (out string) {
	for sc := bufio.NewScanner(strings.NewReader(s)); sc.Scan(); {
		out += strings.TrimRight(sc.Text(), " ") + "\n"
	}
	return out
}
