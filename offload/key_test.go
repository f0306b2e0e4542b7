package offload_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"culvert/offload"
)

// secret is recognisable in text, in hex and in decimal.
const secret = "hush, a secret k"

// shows reports whether a text has the secret in it, however written.
func shows(text string) bool {
	text = strings.ToLower(text)
	for _, form := range []string{
		"hush", "687573", "0x68, 0x75", "68 75 73", "104 117 115", "104, 117, 115", "104,117,115", "ahvzac", // base64
		"1101000",
	} {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

// Whatever prints a key, alone or inside Keys, by value or pointer, shows three asterisks and nothing of the key.
func TestKeyPrintsNothing(t *testing.T) {
	k := offload.Key(secret)
	keys := offload.Keys{Enc: k, Auth: k}
	type wrapper struct {
		Name string
		Key  offload.Key
		Keys *offload.Keys
	}
	values := []any{k, &k, keys, &keys, []offload.Key{k}, map[string]offload.Key{"a": k}, wrapper{"n", k, &keys}, &wrapper{"n", k, &keys}}
	for _, v := range values {
		for _, verb := range "vTtbcdoOqxXUeEfFgGsz" {
			for _, flags := range []string{"", "+", "#", "-", " ", "0", "40", ".3", "+#"} {
				format := "%" + flags + string(verb)
				if got := fmt.Sprintf(format, v); shows(got) {
					t.Errorf("%s of a %T gives %q", format, v, got)
				}
			}
		}
		if got := fmt.Sprint(v) + fmt.Sprintln(v); shows(got) {
			t.Errorf("Sprint of a %T gives %q", v, got)
		}
		if got := fmt.Errorf("bad: %v: %w", v, fmt.Errorf("%s", v)).Error(); shows(got) {
			t.Errorf("an error with a %T gives %q", v, got)
		}
		if got, err := json.Marshal(v); err != nil || shows(string(got)) {
			t.Errorf("JSON of a %T gives %s, %v", v, got, err)
		}
		var log bytes.Buffer
		for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
			slog.New(h).Info("made", "value", v, slog.Group("g", "inner", v))
		}
		if shows(log.String()) {
			t.Errorf("slog of a %T gives %s", v, &log)
		}
		var stream bytes.Buffer
		if err := gob.NewEncoder(&stream).Encode(v); err != nil || shows(stream.String()) {
			t.Errorf("gob of a %T gives %q, %v", v, &stream, err)
		}
	}
	type element struct{ K offload.Key }
	if got, err := xml.Marshal(element{k}); err != nil || shows(string(got)) {
		t.Errorf("XML gives %s, %v", got, err)
	}
	text, _ := k.MarshalText()
	for what, got := range map[string]string{
		"%v": fmt.Sprintf("%v", k), "%x": fmt.Sprintf("%x", k), "%#v": fmt.Sprintf("%#v", k), "%q": fmt.Sprintf("%q", k),
		"String": k.String(), "GoString": k.GoString(), "LogValue": k.LogValue().String(), "MarshalText": string(text),
		"an empty key": fmt.Sprint(offload.Key(nil)),
	} {
		if got != "***" {
			t.Errorf("%s gives %q, not ***", what, got)
		}
	}
}

// The test above would notice.
func TestShows(t *testing.T) {
	plain := []byte(secret)
	for _, format := range []string{"%v", "%s", "%q", "%x", "%X", "%#v", "%#x", "% x", "%d", "%b"} {
		if got := fmt.Sprintf(format, plain); !shows(got) {
			t.Errorf("%s of the plain bytes, %q, is not recognised", format, got)
		}
	}
	if got, _ := json.Marshal(plain); !shows(string(got)) {
		t.Errorf("JSON of the plain bytes, %s, is not recognised", got)
	}
}

// Zero wipes the memory itself, Clone has its own, Equal compares content and length.
func TestKeyMemory(t *testing.T) {
	k := offload.Key(secret)
	c := offload.Keys{Enc: k, Auth: k[:4]}.Clone()
	if !c.Enc.Equal(k) || c.Enc.Equal(k[1:]) || c.Enc.Equal(offload.Key(strings.ToUpper(secret))) {
		t.Error("Equal is wrong")
	}
	k.Zero()
	if !bytes.Equal(k, make([]byte, len(secret))) {
		t.Error("Zero left something")
	}
	if string(c.Enc) != secret || string(c.Auth) != secret[:4] {
		t.Error("Zero reached into the clone")
	}
	c.Zero()
	if !c.Enc.Equal(make([]byte, len(secret))) || !c.Auth.Equal(make([]byte, 4)) {
		t.Error("Keys.Zero left something")
	}
}
