package divert

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"culvert/xfrm/server"
)

// Unmodified iproute2 under the launcher makes, lists and removes SAs and policies of the server, not of the kernel, and its
// monitor tells of them.
func TestIproute2(t *testing.T) {
	r := newRig(t, server.Config{})
	mon := r.command("plain", "ip", "xfrm", "monitor", "all")
	out, err := mon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := mon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { mon.Process.Kill(); mon.Wait() }()
	eventually(t, "ip xfrm monitor joins groups", func() bool {
		c := r.sink.Clients()
		return len(c) == 1 && c[0].Groups() != 0
	})
	told := make(chan string)
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			told <- s.Text()
		}
		close(told)
	}()

	r.run("plain", "ip", "xfrm", "state", "add", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "spi", "0x1001", "reqid", "7",
		"mode", "tunnel", "aead", "rfc4106(gcm(aes))", "0x"+strings.Repeat("ab", 20), "128")
	r.run("plain", "ip", "xfrm", "policy", "add", "dir", "out", "src", "10.1.0.0/16", "dst", "10.2.0.0/16",
		"tmpl", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "reqid", "7", "mode", "tunnel")
	list := r.run("plain", "ip", "xfrm", "state", "list")
	if !strings.Contains(list, "proto esp spi 0x00001001 reqid 7 mode tunnel") {
		t.Errorf("ip xfrm state list:\n%s", list)
	}
	if list := r.run("plain", "ip", "xfrm", "policy", "list"); !strings.Contains(list, "src 10.1.0.0/16 dst 10.2.0.0/16") {
		t.Errorf("ip xfrm policy list:\n%s", list)
	}
	if list := sh(t, "ip", "xfrm", "state", "list") + sh(t, "ip", "xfrm", "policy", "list"); strings.Contains(list, "0x00001001") || strings.Contains(list, "10.1.0.0") {
		t.Errorf("the kernel has what the server should have:\n%s", list)
	}
	again, err := r.command("plain", "ip", "xfrm", "policy", "add", "dir", "out", "src", "10.1.0.0/16", "dst", "10.2.0.0/16",
		"tmpl", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "reqid", "7", "mode", "tunnel").CombinedOutput()
	if err == nil || !strings.Contains(string(again), "File exists") {
		t.Errorf("a second time: %v\n%s", err, again)
	}
	r.run("plain", "ip", "xfrm", "state", "flush")
	r.run("plain", "ip", "xfrm", "policy", "deleteall")
	if list := r.run("compat", "ip", "xfrm", "state", "list") + r.run("compat", "ip", "xfrm", "policy", "list"); list != "" {
		t.Errorf("after flush:\n%s", list)
	}
	timeout := time.After(20 * time.Second)
	for _, want := range []string{"0x00001001", "10.1.0.0/16", "Flushed state", "Deleted src 10.1.0.0/16"} {
		for {
			select {
			case line, ok := <-told:
				if !ok {
					t.Fatalf("the monitor ended before it told of %q", want)
				}
				if !strings.Contains(line, want) {
					continue
				}
			case <-timeout:
				t.Fatalf("the monitor did not tell of %q", want)
			}
			break
		}
	}
}
