package judge

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"culvert/offload"
)

// associations lists one SA per transform and kind of encapsulation, with different SPIs.
func associations() (sas []SA) {
	spi := uint32(0x1000)
	for _, t := range offload.Transforms() {
		for _, family := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
			for _, port := range []uint16{0, 4500} {
				sas = append(sas, SA{
					Transform: t, Keys: ExampleKeys(t, false), SPI: spi,
					Src: netip.MustParseAddr(family[0]), Dst: netip.MustParseAddr(family[1]), SrcPort: port, DstPort: port,
				})
				spi++
			}
		}
	}
	return sas
}

func example(text string) []byte {
	return UDP(netip.MustParseAddrPort("10.1.0.1:5140"), netip.MustParseAddrPort("10.2.0.1:514"), []byte("<30>"+text))
}

// The judges are of one mind without Culvert: what scapy seals, it opens, tshark finds authentic and decrypts, and tcpdump decrypts,
// in every transform that each knows and in all four encapsulations. So a verdict against Culvert is about Culvert.
func TestJudgesAgree(t *testing.T) {
	sas := associations()
	var seal []SealJob
	for i, s := range sas {
		if err := ScapyKnows(s.Transform); err != nil {
			t.Fatalf("%s: %v", s.Transform, err)
		}
		seal = append(seal, SealJob{s, []Plain{{Inner: example(fmt.Sprintf("message %d", i)), Seq: uint64(i + 1)}}})
	}
	sealed := ScapySeal(t, seal...)

	var open []OpenJob
	var tsharkSAs, tcpdumpSAs []SA
	var tsharkIn, tcpdumpIn [][]byte
	var tsharkOf, tcpdumpOf []int
	for i, s := range sas {
		open = append(open, OpenJob{s, []Wire{{Packet: sealed[i][0]}}})
		if TsharkKnows(s.Transform, false) == nil {
			tsharkSAs, tsharkIn, tsharkOf = append(tsharkSAs, s), append(tsharkIn, sealed[i][0]), append(tsharkOf, i)
		}
		if TcpdumpKnows(s.Transform) == nil {
			tcpdumpSAs, tcpdumpIn, tcpdumpOf = append(tcpdumpSAs, s), append(tcpdumpIn, sealed[i][0]), append(tcpdumpOf, i)
		}
	}
	for i, o := range ScapyOpen(t, open...) {
		if o[0].Err != "" || !bytes.Equal(o[0].Inner, seal[i].Plain[0].Inner) {
			t.Errorf("scapy opens its own packet of %s to %x (%s)", sas[i].Transform, o[0].Inner, o[0].Err)
		}
	}
	for k, d := range Tshark(t, WritePcap(t, tsharkIn), tsharkSAs...) {
		i := tsharkOf[k]
		if !d.ICVGood || d.ICVBad || d.BadChecksum || d.SPI != sas[i].SPI || d.Seq != uint32(i+1) || d.NextHeader != 4 || !bytes.Equal(d.Inner, seal[i].Plain[0].Inner) {
			t.Errorf("tshark makes of scapy's packet of %s over %s, UDP %v: %+v", sas[i].Transform, sas[i].Dst, sas[i].UDP(), d)
		}
	}
	text := Tcpdump(t, WritePcap(t, tcpdumpIn), tcpdumpSAs...)
	for _, i := range tcpdumpOf {
		// tcpdump quotes the message, so the end of it is marked.
		if want := fmt.Sprintf("Msg: message %d\n", i); !strings.Contains(text, want) {
			t.Errorf("tcpdump does not show %q of scapy's packet of %s over %s, UDP %v", want, sas[i].Transform, sas[i].Dst, sas[i].UDP())
		}
	}
}

// A packet with one bit changed is refused by scapy and by tshark; so the judges can say no.
func TestJudgesRefuse(t *testing.T) {
	var seal []SealJob
	for _, s := range associations() {
		if !s.UDP() && s.Dst.Is4() {
			seal = append(seal, SealJob{s, []Plain{{Inner: example("hello"), Seq: 5}}})
		}
	}
	var open []OpenJob
	var tsharkSAs []SA
	var tsharkIn [][]byte
	for i, wire := range ScapySeal(t, seal...) {
		s, p := seal[i].SA, wire[0]
		q := bytes.Clone(p)
		p[20+s.Transform.HeaderLen()+3] ^= 4
		open = append(open, OpenJob{s, []Wire{{Packet: p}}})
		if TsharkKnows(s.Transform, false) == nil {
			// tshark gives up before its verdict if the decrypted packet is nonsense, so it gets an altered ICV.
			q[len(q)-1] ^= 4
			tsharkSAs, tsharkIn = append(tsharkSAs, s), append(tsharkIn, q)
		}
	}
	for i, o := range ScapyOpen(t, open...) {
		if !strings.Contains(o[0].Err, "IPSecIntegrityError") {
			t.Errorf("scapy opens an altered packet of %s: %+v", open[i].SA.Transform, o[0])
		}
	}
	for i, d := range Tshark(t, WritePcap(t, tsharkIn), tsharkSAs...) {
		if d.ICVGood || !d.ICVBad {
			t.Errorf("tshark finds an altered packet of %s authentic: %+v", tsharkSAs[i].Transform, d)
		}
	}
}

// A wrong checksum inside an authentic packet is seen.
func TestTsharkSeesChecksums(t *testing.T) {
	s := associations()[0]
	wrong := example("hello")
	wrong[27]++ // of the UDP checksum
	sealed := ScapySeal(t, SealJob{s, []Plain{{Inner: example("hello"), Seq: 1}, {Inner: wrong, Seq: 2}}})
	d := Tshark(t, WritePcap(t, sealed[0]), s)
	if len(d) != 2 || d[0].BadChecksum || !d[1].BadChecksum || !d[1].ICVGood {
		t.Errorf("tshark says %+v", d)
	}
}

// What each judge does not know is exactly this list; the day a judge learns more, it is to be asked.
func TestWhatJudgesDoNotKnow(t *testing.T) {
	known := map[string]int{}
	for _, tr := range offload.Transforms() {
		for judge, err := range map[string]error{"scapy": ScapyKnows(tr), "tshark": TsharkKnows(tr, false), "tcpdump": TcpdumpKnows(tr)} {
			if err == nil {
				known[judge]++
			} else {
				t.Logf("%s is not judged by %s: %v", tr, judge, err)
			}
		}
	}
	// 5 ciphers × 6 HMACs, 3 GCM and ChaCha20-Poly1305; tcpdump: 4 CBC ciphers × 3 HMACs cut to 96 bits.
	if known["scapy"] != 34 || known["tshark"] != 33 || known["tcpdump"] != 12 {
		t.Errorf("transforms known: %v", known)
	}
}

// ESP finds the packet that Encapsulate put into outer headers.
func TestEncapsulate(t *testing.T) {
	esp := []byte("SPI.seq.and something")
	for _, s := range associations()[:4] {
		got, err := ESP(s.Encapsulate(esp))
		if err != nil || !bytes.Equal(got, esp) {
			t.Errorf("over %s, UDP %v: %q, %v", s.Dst, s.UDP(), got, err)
		}
	}
	if _, err := ESP(example("not ESP")[:12]); err == nil {
		t.Error("ESP was found in 12 bytes")
	}
}

// A capture that was killed in the middle of a packet still gives all before it.
func TestReadPcapCutOff(t *testing.T) {
	all := [][]byte{example("one"), example("two")}
	name := WritePcap(t, all)
	got, err := ReadPcap(name)
	if err != nil || len(got) != 2 || !bytes.Equal(got[1], all[1]) {
		t.Fatalf("%d packets, %v", len(got), err)
	}
	if err := truncate(name, 5); err != nil {
		t.Fatal(err)
	}
	got, err = ReadPcap(name)
	if err != nil || len(got) != 1 || !bytes.Equal(got[0], all[0]) {
		t.Fatalf("cut off: %d packets, %v", len(got), err)
	}
}

// truncate takes n bytes off the end of a file.
func truncate(name string, n int64) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	return os.Truncate(name, info.Size()-n)
}
