package judge

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"

	"culvert/offload"
)

//go:embed esp.py
var espPy string

// python is the interpreter that Debian's python3-scapy belongs to; another one may be first in PATH.
const python = "/usr/bin/python3"

// Plain is a packet for scapy to seal, with what a malicious or careless peer might do differently.
type Plain struct {
	Inner []byte
	Seq   uint64
	// IV is random when empty.
	IV []byte
	// Pad, if not nil, replaces the padding 1, 2, 3 … of RFC 4303 section 2.4; the length must fit the block.
	Pad []byte
	// PadLen, if not nil, is written instead of the length of Pad.
	PadLen *int
	// NextHeader, if not nil, is written instead of the inner packet's 4 or 41.
	NextHeader *int
	// TFC is put between the inner packet and the padding (RFC 4303 section 2.7).
	TFC []byte
}

// SealJob is a list of packets of one SA for scapy to seal.
type SealJob struct {
	SA    SA
	Plain []Plain
}

// Wire is one outer IP packet, and the high half of its extended sequence number, which is not in it.
type Wire struct {
	Packet []byte
	SeqHi  uint32
}

// OpenJob is a list of packets of one SA for scapy to open.
type OpenJob struct {
	SA   SA
	Wire []Wire
}

// Opened is what scapy makes of a packet: the inner one, or why there is none.
type Opened struct {
	Inner []byte
	Err   string
}

var scapyCiphers = map[offload.Cipher]string{
	offload.CipherNull:       "NULL",
	offload.AESCBC:           "AES-CBC",
	offload.TripleDESCBC:     "3DES",
	offload.AESGCM:           "AES-GCM",
	offload.ChaCha20Poly1305: "CHACHA20-POLY1305",
}

// authKey is an HMAC with its truncation.
type authKey struct {
	auth offload.Auth
	bits int
}

var scapyAuths = map[authKey]string{
	{offload.HMACMD5, 96}:     "HMAC-MD5-96",
	{offload.HMACSHA1, 96}:    "HMAC-SHA1-96",
	{offload.HMACSHA256, 128}: "SHA2-256-128",
	{offload.HMACSHA256, 96}:  "SHA2-256-96",
	{offload.HMACSHA384, 192}: "SHA2-384-192",
	{offload.HMACSHA512, 256}: "SHA2-512-256",
	{offload.AuthNone, 128}:   "",
}

// ScapyKnows is nil if scapy can seal and open a transform, and says otherwise why not.
func ScapyKnows(t *offload.Transform) error {
	if _, ok := scapyCiphers[t.Cipher]; !ok {
		return fmt.Errorf("scapy 2.5 has no cipher %s", t.Cipher)
	}
	if _, ok := scapyAuths[authKey{t.Auth, t.ICVLen * 8}]; !ok {
		return fmt.Errorf("scapy 2.5 has no %s cut to %d bits", t.Auth, t.ICVLen*8)
	}
	return nil
}

// The messages to and from esp.py, which describes them.
type (
	pyJob struct {
		Op      string     `json:"op"`
		Crypt   string     `json:"crypt"`
		Key     string     `json:"key"`
		Auth    string     `json:"auth,omitempty"`
		AuthKey string     `json:"auth_key,omitempty"`
		SPI     uint32     `json:"spi"`
		Src     string     `json:"src"`
		Dst     string     `json:"dst"`
		NATT    []uint16   `json:"natt,omitempty"`
		ESN     bool       `json:"esn"`
		Packets []pyPacket `json:"packets"`
	}
	pyPacket struct {
		Inner  string  `json:"inner,omitempty"`
		Seq    uint64  `json:"seq"`
		IV     string  `json:"iv,omitempty"`
		Pad    *string `json:"pad,omitempty"`
		PadLen *int    `json:"padlen,omitempty"`
		NH     *int    `json:"nh,omitempty"`
		TFC    string  `json:"tfc,omitempty"`
		Wire   string  `json:"wire,omitempty"`
		SeqHi  uint32  `json:"seqhi,omitempty"`
	}
	pyResult struct {
		Packets []string  `json:"packets"`
		Errors  []*string `json:"errors"`
	}
)

func (s SA) pyJob(op string) pyJob {
	j := pyJob{
		Op:    op,
		Crypt: scapyCiphers[s.Transform.Cipher], Key: hexOf(s.Keys.Enc),
		Auth: scapyAuths[authKey{s.Transform.Auth, s.Transform.ICVLen * 8}], AuthKey: hexOf(s.Keys.Auth),
		SPI: s.SPI, Src: s.Src.String(), Dst: s.Dst.String(), ESN: s.Keys.ESN,
	}
	if s.UDP() {
		j.NATT = []uint16{s.SrcPort, s.DstPort}
	}
	return j
}

func runScapy(tb testing.TB, jobs []pyJob) []pyResult {
	tb.Helper()
	Need(tb, python)
	if out, err := exec.Command(python, "-c", "import scapy.layers.ipsec, cryptography").CombinedOutput(); err != nil {
		tb.Skipf("%s has no scapy with cryptography (apt-get install python3-scapy python3-cryptography): %s", python, bytes.TrimSpace(out))
	}
	in, err := json.Marshal(jobs)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(python, "-c", espPy)
	cmd.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("scapy: %v: %s", err, stderr.Bytes())
	}
	var results []pyResult
	if err := json.Unmarshal(out, &results); err != nil {
		tb.Fatalf("scapy: %v in %.200q", err, out)
	}
	if len(results) != len(jobs) {
		tb.Fatalf("scapy answered %d of %d jobs", len(results), len(jobs))
	}
	return results
}

// ScapySeal has scapy seal packets, and gives the outer IP packets per job. A packet that scapy cannot build fails the test.
func ScapySeal(tb testing.TB, jobs ...SealJob) [][][]byte {
	tb.Helper()
	var py []pyJob
	for _, j := range jobs {
		p := j.SA.pyJob("seal")
		for _, pl := range j.Plain {
			pp := pyPacket{Inner: hexOf(pl.Inner), Seq: pl.Seq, IV: hexOf(pl.IV), PadLen: pl.PadLen, NH: pl.NextHeader, TFC: hexOf(pl.TFC)}
			if pl.Pad != nil {
				pad := hexOf(pl.Pad)
				pp.Pad = &pad
			}
			p.Packets = append(p.Packets, pp)
		}
		py = append(py, p)
	}
	var out [][][]byte
	for i, r := range runScapy(tb, py) {
		var wire [][]byte
		for k, p := range r.Packets {
			if r.Errors[k] != nil {
				tb.Fatalf("scapy cannot seal packet %d of %s: %s", k, jobs[i].SA.Transform, *r.Errors[k])
			}
			b, err := hex.DecodeString(p)
			if err != nil {
				tb.Fatal(err)
			}
			wire = append(wire, b)
		}
		out = append(out, wire)
	}
	return out
}

// ScapyOpen has scapy open packets: verify their ICV, decrypt them and take off the outer headers.
func ScapyOpen(tb testing.TB, jobs ...OpenJob) [][]Opened {
	tb.Helper()
	var py []pyJob
	for _, j := range jobs {
		p := j.SA.pyJob("open")
		for _, w := range j.Wire {
			p.Packets = append(p.Packets, pyPacket{Wire: hexOf(w.Packet), SeqHi: w.SeqHi})
		}
		py = append(py, p)
	}
	var out [][]Opened
	for _, r := range runScapy(tb, py) {
		var opened []Opened
		for k, p := range r.Packets {
			b, err := hex.DecodeString(p)
			if err != nil {
				tb.Fatal(err)
			}
			o := Opened{Inner: b}
			if r.Errors[k] != nil {
				o = Opened{Err: *r.Errors[k]}
			}
			opened = append(opened, o)
		}
		out = append(out, opened)
	}
	return out
}
