package sa

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// secret is a key no part of which can come up by chance.
var secret = []byte("\xde\xad\xbe\xef\x13\x37\xf0\x0d\xca\xfe\xba\xbe\x8b\xad\xf0\x0d\x5a\x17\xc0\xde")

// leaks reports a run of four bytes of the secret in any notation that printing could give it.
func leaks(text string) (string, bool) {
	low := strings.ToLower(text)
	for i := 0; i+4 <= len(secret); i++ {
		part := secret[i : i+4]
		decimal := fmt.Sprint(part)
		for _, form := range []string{
			string(part), hex.EncodeToString(part), fmt.Sprintf("% x", part), strings.Trim(decimal, "[]"),
			strings.ReplaceAll(strings.Trim(decimal, "[]"), " ", ", "), strings.ReplaceAll(strings.Trim(decimal, "[]"), " ", ","),
			fmt.Sprintf("%#v", part)[len("[]byte{"):][:22], strings.Trim(fmt.Sprintf("%q", part), `"`),
			strings.Trim(fmt.Sprintf("%o", part), "[]"), strings.Trim(fmt.Sprintf("%b", part), "[]"),
		} {
			if strings.Contains(low, strings.ToLower(form)) {
				return form, true
			}
		}
	}
	// Base 64 in each of its three alignments.
	for shift := range 3 {
		form := base64.StdEncoding.EncodeToString(secret[shift : shift+15])
		if strings.Contains(text, form[4:12]) {
			return form, true
		}
	}
	return "", false
}

// No way of printing or encoding anything that has keys shows any of them, and each says something all the same.
func TestNothingPrintsKeys(t *testing.T) {
	p := params(t, 0xc0000001)
	copy(p.Keys.Enc, secret)
	p.Lifetime.Soft.Add = time.Hour
	o := outbound(t, p)
	i := inbound(t, p)
	d := NewDB()
	policy := Policy{Name: "office", Action: Protect, Out: o}
	update(t, d, func(tx *Tx) error { return tx.Replace([]*Outbound{o}, []*Inbound{i}, []Policy{policy}) })
	s := d.Acquire()
	defer s.Release()
	if _, ok := leaks(fmt.Sprintf("%v", secret)); !ok {
		t.Fatal("the test would not notice")
	}
	things := map[string]any{
		"Params": p, "*Params": &p, "Outbound": o, "Inbound": i, "Policy": policy, "*Policy": &policy,
		"Expiry": Expiry{Outbound: o, Inbound: i}, "a slice": []any{p, o, i, policy}, "a list": s.Outbounds(), "policies": s.Policies(),
		"a struct": struct {
			P Params
			O *Outbound
		}{p, o},
		"Stats": o.Stats(),
	}
	for name, v := range things {
		for _, flags := range []string{"", "+", "#", "-20", " ", "0"} {
			// Not %p, which for a struct calls no methods and is an error that go vet finds.
			for _, verb := range "vsdxXqobcUtTeEfgG" {
				format := "%" + flags + string(verb)
				if form, bad := leaks(fmt.Sprintf(format, v)); bad {
					t.Errorf("%s with %s shows %s", name, format, form)
				}
			}
		}
		if text := fmt.Sprintf("%v", v); len(text) < 5 {
			t.Errorf("%s prints as %q", name, text)
		}
		j, err := json.Marshal(v)
		if err != nil || len(j) < 10 {
			t.Errorf("%s as JSON: %s, %v", name, j, err)
		}
		if form, bad := leaks(string(j)); bad {
			t.Errorf("%s as JSON shows %s", name, form)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, slog.Group("g", "v", v))
		if form, bad := leaks(log.String()); bad {
			t.Errorf("%s in a log shows %s", name, form)
		}
	}
	for _, v := range []any{d, s, o.Sequence()} { // have SAs inside, and print what package fmt makes of them
		if form, bad := leaks(fmt.Sprintf("%v %+v %#v %x", v, v, v, v)); bad {
			t.Errorf("%T shows %s", v, form)
		}
	}
}

// What prints is what a person looks for.
func TestPrinted(t *testing.T) {
	p := params(t, 0xc0000001)
	p.Encap, p.SrcPort, p.DstPort, p.Keys.ESN = EncapUDP, 4500, 4501, true
	o := outbound(t, p)
	policy := Policy{Name: "lan", Priority: 10, Action: Protect, Out: o, Sel: selector(t, "dst 10.2.0.0/16")}
	for want, v := range map[string]any{
		`outbound "office" spi 0xc0000001 203.0.113.1:4500>198.51.100.2:4501 rfc4106(gcm(aes)) 128-bit key, 128-bit ICV esn`: o,
		`out "lan" priority 10 protect dst 10.2.0.0/16 with spi 0xc0000001`:                                                  policy,
	} {
		if got := fmt.Sprint(v); got != want {
			t.Errorf("%s\nis not\n%s", got, want)
		}
	}
	j, err := json.Marshal(policy)
	want := `{"name":"lan","dir":"out","selector":"dst 10.2.0.0/16","priority":10,"action":"protect","spi":"0xc0000001"}`
	if err != nil || string(j) != want {
		t.Errorf("%s, %v", j, err)
	}
}
