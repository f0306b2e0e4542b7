package judge

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"culvert/offload"
)

// tcpdumpCiphers are the names of libcrypto that tcpdump -E takes, by cipher and key bits.
var tcpdumpCiphers = map[offload.Cipher]map[int]string{
	offload.AESCBC:       {128: "aes128", 192: "aes192", 256: "aes256"},
	offload.TripleDESCBC: {192: "des3"},
}

// TcpdumpKnows is nil if tcpdump can decrypt a transform, and says otherwise why not. tcpdump checks no ICV.
func TcpdumpKnows(t *offload.Transform) error {
	switch {
	case t.AEAD:
		return fmt.Errorf("tcpdump 4.99 takes CBC ciphers only: it has no place for the salt and the counter of %s", t.Cipher)
	case tcpdumpCiphers[t.Cipher][t.KeyBits] == "":
		return fmt.Errorf("tcpdump 4.99 has no cipher %s", t.Cipher)
	case t.ICVLen != 12:
		return fmt.Errorf("tcpdump 4.99 takes an ICV to have 96 bits, not %d", t.ICVLen*8)
	}
	return nil
}

// Tcpdump has tcpdump decrypt the packets of a capture file with the keys of these SAs, and gives what it prints with -vv: per packet
// one line or more, of which all but the first of each begin with white space.
func Tcpdump(tb testing.TB, pcap string, sas ...SA) string {
	tb.Helper()
	Need(tb, "tcpdump")
	var secrets []string
	for _, s := range sas {
		if err := TcpdumpKnows(s.Transform); err != nil {
			tb.Fatal(err)
		}
		secrets = append(secrets, fmt.Sprintf("0x%08x@%s %s-hmac96:0x%s", s.SPI, s.Dst, tcpdumpCiphers[s.Transform.Cipher][s.Transform.KeyBits],
			hexOf(s.Keys.Enc)))
	}
	cmd := exec.Command("tcpdump", "-nn", "-vv", "-t", "-r", pcap, "-E", strings.Join(secrets, "\n"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		tb.Fatalf("tcpdump: %v: %s", err, stderr.Bytes())
	}
	if bytes.Contains(stderr.Bytes(), []byte("WARNING")) {
		tb.Fatalf("tcpdump does not take the SAs: %s", stderr.Bytes())
	}
	return string(text)
}
