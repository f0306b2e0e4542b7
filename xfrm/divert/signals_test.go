package divert

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm/server"
)

// A program that opens thousands of sockets gets each of them, and never its standard input instead, however many signals reach the
// supervisor's threads meanwhile.
func TestSocketsUnderSignals(t *testing.T) {
	r := newRig(t, server.Config{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
			threads, _ := os.ReadDir("/proc/self/task")
			for _, thread := range threads {
				if tid, err := strconv.Atoi(thread.Name()); err == nil {
					_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // as the Go runtime does; it makes nothing of one that it has not sent
				}
			}
		}
	}()
	out := r.run("plain", python(), "-c", `
import socket
for n in range(3000):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
    if s.fileno() < 3:
        print("socket", n, "is", s.fileno())
        s.detach()
        break
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
    s.close()
else:
    print("all")
`)
	close(stop)
	<-stopped
	if strings.TrimSpace(out) != "all" {
		t.Error(out)
	}
}
