package xfrm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newBody is an empty body of the type that a message has.
func newBody(h Header) Body {
	switch h.Type {
	case MsgNewSA, MsgUpdSA:
		return new(SA)
	case MsgDelSA:
		return new(SAID)
	case MsgGetSA:
		if h.IsDump() {
			return new(Dump)
		}
		return new(SAID)
	case MsgNewPolicy, MsgUpdPolicy:
		return new(Policy)
	case MsgDelPolicy:
		return new(PolicyID)
	case MsgGetPolicy:
		if h.IsDump() {
			return new(Dump)
		}
		return new(PolicyID)
	case MsgAllocSPI:
		return new(AllocSPI)
	case MsgAcquire:
		return new(Acquire)
	case MsgExpire:
		return new(Expire)
	case MsgPolExpire:
		return new(PolicyExpire)
	case MsgFlushSA:
		return new(Flush)
	case MsgFlushPolicy:
		return new(FlushPolicy)
	case MsgNewAE, MsgGetAE:
		return new(AE)
	case MsgReport:
		return new(Report)
	case MsgMigrate:
		return new(Migrate)
	case MsgNewSADInfo, MsgGetSADInfo:
		return new(SADInfo)
	case MsgNewSPDInfo, MsgGetSPDInfo:
		return new(SPDInfo)
	case MsgMapping:
		return new(Mapping)
	case MsgSetDefault, MsgGetDefault:
		return new(Default)
	}
	return nil
}

// golden is one recorded datagram.
type golden struct {
	where      string // file:line
	fromKernel bool
	b          []byte
}

func goldens(t testing.TB) []golden {
	t.Helper()
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var all []golden
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<22)
		for line := 1; s.Scan(); line++ {
			where := fmt.Sprintf("%s:%d", name, line)
			dir, text, ok := strings.Cut(s.Text(), " ")
			if dir == "#" {
				continue
			}
			b, err := hex.DecodeString(text)
			if err != nil || !ok || dir != "S" && dir != "R" {
				t.Fatalf("%s: %v", where, err)
			}
			all = append(all, golden{where, dir == "R", b})
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestGolden proves with what iproute2, charon and kernels have really sent that encoding gives back the very bytes that were
// decoded; and that what the kernel sends has the order of attributes in which this package encodes what it made itself.
func TestGolden(t *testing.T) {
	seen := map[string]int{}
	for _, g := range goldens(t) {
		for m, err := range Messages(g.b) {
			if err != nil {
				t.Fatalf("%s: %v", g.where, err)
			}
			name := TypeName(m.Type)
			if g.fromKernel {
				name += " of the kernel"
			}
			seen[name]++
			body := newBody(m.Header)
			if body == nil {
				if m.Type != typeError && m.Type != typeDone {
					t.Errorf("%s: no body for %s", g.where, name)
				}
				continue
			}
			if e := body.decode(Align8, m.Body); e != nil {
				t.Errorf("%s: %s: %v", g.where, name, e)
				continue
			}
			check := func(how string) {
				got := Align8.Append(nil, body, m.Type, m.Flags, m.Seq, m.PID)
				if want := m.Raw(); len(got) < len(want) || !bytes.Equal(got[:len(want)], want) {
					t.Errorf("%s: %s %s\ngot  %x\nwant %x", g.where, name, how, got, want)
				}
			}
			check("as it came")
			if g.fromKernel {
				canonical(body)
				check("in canonical order")
			}
		}
	}
	for _, must := range []string{
		"NEWSA", "DELSA", "GETSA", "NEWPOLICY", "DELPOLICY", "GETPOLICY", "ALLOCSPI", "ACQUIRE", "EXPIRE", "UPDPOLICY", "UPDSA", "POLEXPIRE",
		"FLUSHSA", "FLUSHPOLICY", "NEWAE", "GETAE", "MIGRATE", "GETSADINFO", "NEWSPDINFO", "GETSPDINFO", "SETDEFAULT", "GETDEFAULT",
		"NEWSA of the kernel", "UPDSA of the kernel", "DELSA of the kernel", "FLUSHSA of the kernel", "NEWPOLICY of the kernel",
		"UPDPOLICY of the kernel", "DELPOLICY of the kernel", "FLUSHPOLICY of the kernel", "NEWAE of the kernel", "ACQUIRE of the kernel",
		"EXPIRE of the kernel", "POLEXPIRE of the kernel", "MIGRATE of the kernel", "MAPPING of the kernel", "NEWSADINFO of the kernel",
		"NEWSPDINFO of the kernel", "GETDEFAULT of the kernel", "ERROR of the kernel", "DONE of the kernel",
	} {
		if seen[must] == 0 {
			t.Errorf("no %s was recorded", must)
		}
	}
}

// TestGoldenReplies proves that acknowledgements, refusals and ends of dumps are the kernel's, byte for byte, with the text and
// offset that it gave; the request that each answers was recorded just before it.
func TestGoldenReplies(t *testing.T) {
	var req Message
	acks, refusals, texts, ends := 0, 0, 0, 0
	for _, g := range goldens(t) {
		for m, err := range Messages(g.b) {
			if err != nil {
				t.Fatalf("%s: %v", g.where, err)
			}
			if !g.fromKernel {
				req = m
				continue
			}
			if m.Type != typeError && m.Type != typeDone || m.Seq != req.Seq {
				continue
			}
			err := DecodeReply(m)
			var e *Error
			if err != nil {
				e = AsError(err)
			}
			r := Reply{PID: m.PID, ExtAck: true}
			var got []byte
			if m.Type == typeDone {
				got = r.AppendDone(nil, req.Header, 0, e)
				ends++
			} else {
				if host.Uint16(m.Body[8:]) != req.Type {
					continue
				}
				got = r.AppendError(nil, req, e)
				switch {
				case e == nil:
					acks++
				case e.Msg != "":
					texts++
				default:
					refusals++
				}
			}
			if len(got) < len(m.Raw()) || !bytes.Equal(got[:len(m.Raw())], m.Raw()) {
				t.Errorf("%s: %s\ngot  %x\nwant %x", g.where, TypeName(m.Type), got, m.Raw())
			}
		}
	}
	if acks < 20 || refusals < 4 || texts < 4 || ends < 10 {
		t.Errorf("only %d acknowledgements, %d refusals, %d with a text and %d ends of dumps", acks, refusals, texts, ends)
	}
}
