package judge

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"culvert/offload"
)

// The names are those of Wireshark 4.0's table of ESP SAs.
var tsharkCiphers = map[offload.Cipher]string{
	offload.CipherNull:   "NULL",
	offload.AESCBC:       "AES-CBC [RFC3602]",
	offload.TripleDESCBC: "TripleDES-CBC [RFC2451]",
	offload.AESGCM:       "AES-GCM with 16 octet ICV [RFC4106]",
}

var tsharkAuths = map[authKey]string{
	{offload.HMACMD5, 96}:     "HMAC-MD5-96 [RFC2403]",
	{offload.HMACSHA1, 96}:    "HMAC-SHA-1-96 [RFC2404]",
	{offload.HMACSHA256, 96}:  "HMAC-SHA-256-96 [draft-ietf-ipsec-ciph-sha-256-00]",
	{offload.HMACSHA256, 128}: "HMAC-SHA-256-128 [RFC4868]",
	{offload.HMACSHA384, 192}: "HMAC-SHA-384-192 [RFC4868]",
	{offload.HMACSHA512, 256}: "HMAC-SHA-512-256 [RFC4868]",
	{offload.AuthNone, 128}:   "NULL", // the cipher authenticates
}

// TsharkKnows is nil if tshark can check and decrypt a transform, and says otherwise why not.
func TsharkKnows(t *offload.Transform, esn bool) error {
	switch {
	case t.Cipher == offload.ChaCha20Poly1305:
		return fmt.Errorf("tshark 4.0 has no ChaCha20-Poly1305 for ESP")
	case esn:
		return fmt.Errorf("tshark 4.0 has no extended sequence numbers: its table of SAs has no column for the high half")
	case tsharkCiphers[t.Cipher] == "":
		return fmt.Errorf("tshark 4.0 has no cipher %s for ESP", t.Cipher)
	case tsharkAuths[authKey{t.Auth, t.ICVLen * 8}] == "":
		return fmt.Errorf("tshark 4.0 has no %s cut to %d bits for ESP", t.Auth, t.ICVLen*8)
	}
	return nil
}

// needed are the protocols that a packet under judgement has. All others are switched off: tshark guesses at the application of a
// payload, and where it guesses wrong it may give up before its verdict.
var needed = []string{"frame", "raw", "ip", "ipv6", "ipv6.fraghdr", "esp", "udp", "udpencap", "tcp", "icmp", "icmpv6", "data"}

// others lists every protocol of this tshark that is not needed, by its filter name.
var others = sync.OnceValues(func() (string, error) {
	text, err := exec.Command("tshark", "-G", "protocols").Output()
	if err != nil {
		return "", err
	}
	var names strings.Builder
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) >= 3 && !slices.Contains(needed, f[2]) {
			fmt.Fprintln(&names, f[2])
		}
	}
	return names.String(), nil
})

// Dissected is what tshark makes of one captured packet.
type Dissected struct {
	// ESP reports whether it is ESP at all.
	ESP     bool
	SPI     uint32
	Seq     uint32
	ICVGood bool
	ICVBad  bool
	// Inner is the decrypted packet without the ESP trailer, and NextHeader what the trailer says of it. Nil: it was not decrypted.
	Inner      []byte
	NextHeader byte
	Pad        []byte
	IV         []byte
	// BadChecksum: an IP, TCP, UDP or ICMP checksum, outside or inside, is wrong.
	BadChecksum bool
	// Protocols is tshark's stack of protocols: "raw:ip:esp:ip:icmp:data".
	Protocols string
}

var tsharkFields = []string{"esp.spi", "esp.sequence", "esp.icv_good", "esp.icv_bad", "esp.contained_data", "esp.protocol", "esp.pad",
	"esp.iv", "frame.protocols", "ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status"}

// checksumBad is tshark's number for a checksum that it computed and found wrong.
const checksumBad = "0"

// Tshark has tshark verify and decrypt the packets of a capture file with the keys of these SAs.
func Tshark(tb testing.TB, pcap string, sas ...SA) []Dissected {
	tb.Helper()
	Need(tb, "tshark")
	home := tb.TempDir()
	conf := filepath.Join(home, "wireshark")
	if err := os.Mkdir(conf, 0o700); err != nil {
		tb.Fatal(err)
	}
	var table strings.Builder
	args := []string{"-n", "-r", pcap, "-T", "fields", "-E", "occurrence=a"}
	ports := map[uint16]bool{4500: true}
	for _, s := range sas {
		if err := TsharkKnows(s.Transform, s.Keys.ESN); err != nil {
			tb.Fatal(err)
		}
		family := "IPv4"
		if !s.Dst.Is4() {
			family = "IPv6"
		}
		fmt.Fprintf(&table, "%q,%q,%q,%q,%q,%q,%q,%q\n", family, s.Src, s.Dst, fmt.Sprintf("0x%08x", s.SPI),
			tsharkCiphers[s.Transform.Cipher], hexKey(s.Keys.Enc), tsharkAuths[authKey{s.Transform.Auth, s.Transform.ICVLen * 8}], hexKey(s.Keys.Auth))
		if s.UDP() && !ports[s.SrcPort] && !ports[s.DstPort] {
			ports[s.DstPort] = true
			args = append(args, "-d", fmt.Sprintf("udp.port==%d,udpencap", s.DstPort))
		}
	}
	if err := os.WriteFile(filepath.Join(conf, "esp_sa"), []byte(table.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	for _, o := range []string{"esp.enable_encryption_decode:TRUE", "esp.enable_authentication_check:TRUE",
		"esp.enable_null_encryption_decode_heuristic:FALSE", "ip.defragment:FALSE",
		"ip.check_checksum:TRUE", "tcp.check_checksum:TRUE", "udp.check_checksum:TRUE"} {
		args = append(args, "-o", o)
	}
	for _, f := range tsharkFields {
		args = append(args, "-e", f)
	}
	off, err := others()
	if err != nil {
		tb.Fatalf("tshark -G protocols: %v", err)
	}
	if err := os.WriteFile(filepath.Join(conf, "disabled_protos"), []byte(off), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command("tshark", args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		tb.Fatalf("tshark: %v: %s", err, stderr.Bytes())
	}
	if bytes.Contains(stderr.Bytes(), []byte("WARNING")) || bytes.Contains(stderr.Bytes(), []byte("invalid")) {
		tb.Fatalf("tshark does not take the table of SAs: %s", stderr.Bytes())
	}
	var out []Dissected
	for line := range strings.Lines(string(text)) {
		d, err := parseFields(strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		if err != nil {
			tb.Fatalf("tshark packet %d: %v", len(out)+1, err)
		}
		out = append(out, d)
	}
	return out
}

func hexKey(k []byte) string {
	if len(k) == 0 {
		return ""
	}
	return "0x" + hexOf(k)
}

func parseFields(f []string) (d Dissected, err error) {
	if len(f) != len(tsharkFields) {
		return d, fmt.Errorf("%d fields instead of %d: %q", len(f), len(tsharkFields), f)
	}
	for _, status := range f[9:] {
		d.BadChecksum = d.BadChecksum || slices.Contains(strings.Split(status, ","), checksumBad)
	}
	// Of fields that occur in the outer and in the inner packet, the outer one comes first.
	for i := range f {
		f[i], _, _ = strings.Cut(f[i], ",")
	}
	d.Protocols = f[8]
	if f[0] == "" {
		return d, nil
	}
	d.ESP = true
	number := func(s string, bits int) (n uint64) {
		if s == "" || err != nil {
			return 0
		}
		n, err = strconv.ParseUint(s, 0, bits)
		return n
	}
	octets := func(s string) (b []byte) {
		if s == "" || err != nil {
			return nil
		}
		b, err = hex.DecodeString(strings.ReplaceAll(s, ":", ""))
		return b
	}
	d.SPI, d.Seq = uint32(number(f[0], 32)), uint32(number(f[1], 32))
	d.ICVGood, d.ICVBad = f[2] == "1", f[3] == "1"
	d.Inner, d.NextHeader = octets(f[4]), byte(number(f[5], 8))
	d.Pad, d.IV = octets(f[6]), octets(f[7])
	return d, err
}
