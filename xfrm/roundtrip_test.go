package xfrm

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"culvert/offload"
)

// bodies has a new value of every message type.
var bodies = []func() Body{
	func() Body { return new(SA) }, func() Body { return new(SAID) }, func() Body { return new(AllocSPI) },
	func() Body { return new(Expire) }, func() Body { return new(Policy) }, func() Body { return new(PolicyID) },
	func() Body { return new(PolicyExpire) }, func() Body { return new(Acquire) }, func() Body { return new(AE) },
	func() Body { return new(Mapping) }, func() Body { return new(Migrate) }, func() Body { return new(Flush) },
	func() Body { return new(FlushPolicy) }, func() Body { return new(Dump) }, func() Body { return new(Report) },
	func() Body { return new(Default) }, func() Body { return new(SADInfo) }, func() Body { return new(SPDInfo) },
}

// fill gives every field that the messages carry a drawn value.
func fill(t *rapid.T, v reflect.Value, name string) {
	switch x := v.Addr().Interface().(type) {
	case *Algo:
		x.Name = strings.ReplaceAll(string(rapid.SliceOfN(rapid.ByteRange(1, 255), 0, nameLen-1).Draw(t, name)), "\x00", "")
		x.Key = append(offload.Key{}, rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, name)...)
		x.KeyBits = uint32(8 * len(x.Key))
		if n := rapid.Uint32Range(0, 7).Draw(t, name); n < x.KeyBits {
			x.KeyBits -= n
		}
		if strings.HasSuffix(name, "AuthTrunc") || strings.HasSuffix(name, "AEAD") {
			x.ICVBits = rapid.Uint32().Draw(t, name)
		}
		return
	case *ReplayESN:
		x.Bitmap = rapid.SliceOfN(rapid.Uint32(), 0, maxBitmap).Draw(t, name)
		x.Words = uint32(len(x.Bitmap))
		if len(x.Bitmap) == 0 {
			x.Bitmap, x.Words = nil, rapid.Uint32Range(0, maxBitmap).Draw(t, name)
		}
		for _, p := range []*uint32{&x.Oseq, &x.Seq, &x.OseqHi, &x.SeqHi, &x.Window} {
			*p = rapid.Uint32().Draw(t, name)
		}
		return
	case *SecCtx:
		x.Ctx = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, name)...)
		x.Len, x.ExtType, x.CtxLen = rapid.Uint16().Draw(t, name), rapid.Uint16().Draw(t, name), rapid.Uint16().Draw(t, name)
		x.Alg, x.DOI = rapid.Byte().Draw(t, name), rapid.Byte().Draw(t, name)
		return
	}
	if strings.HasSuffix(name, ".SADir.V") {
		v.SetUint(uint64(rapid.Uint8Range(SADirIn, SADirOut).Draw(t, name)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if set := v.FieldByName("Set"); set.IsValid() && v.NumField() == 2 && !rapid.Bool().Draw(t, name+" set") {
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Layout" {
				fill(t, v.Field(i), name+"."+f.Name)
			}
		}
		if set := v.FieldByName("Set"); set.IsValid() {
			set.SetBool(true)
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, name+" set") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), name)
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 7).Draw(t, name+" len"); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(t, v.Index(i), name)
			}
		}
	case reflect.Array:
		copy(v.Slice(0, v.Len()).Bytes(), rapid.SliceOfN(rapid.Byte(), v.Len(), v.Len()).Draw(t, name))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Int32:
		v.SetInt(int64(rapid.Int32().Draw(t, name)))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, name) & (1<<v.Type().Bits() - 1))
	default:
		t.Fatalf("%s is a %v", name, v.Kind())
	}
}

// canonical forgets the order in which attributes came, so that values can be compared.
func canonical(m Body) Body {
	if a := reflect.ValueOf(m).Elem().FieldByName("Attrs"); a.IsValid() {
		a.Addr().Interface().(*Attrs).Canonical()
	}
	return m
}

// TestRoundTrip proves for every message type, with every attribute, that decoding is the inverse of encoding, in both ABIs.
func TestRoundTrip(t *testing.T) {
	for _, abi := range []ABI{Align8, Align4} {
		for _, fresh := range bodies {
			name := reflect.TypeOf(fresh()).Elem().Name()
			t.Run(name+"/"+abi.String(), rapid.MakeCheck(func(t *rapid.T) {
				m := fresh()
				fill(t, reflect.ValueOf(m).Elem(), name)
				typ, flags, seq, pid := rapid.Uint16().Draw(t, "type"), rapid.Uint16().Draw(t, "flags"), rapid.Uint32().Draw(t, "seq"), rapid.Uint32().Draw(t, "pid")
				b := abi.Append([]byte("before"), m, typ, flags, seq, pid)
				if string(b[:6]) != "before" {
					t.Fatal("what was in dst is lost")
				}
				b = b[6:]
				n := 0
				for x, err := range Messages(b) {
					if err != nil {
						t.Fatal(err)
					}
					if want := (Header{uint32(len(b)), typ, flags, seq, pid}); x.Header != want {
						t.Fatalf("header %+v, want %+v", x.Header, want)
					}
					got := fresh()
					if e := got.decode(abi, x.Body); e != nil {
						t.Fatalf("decode: %v", e)
					}
					again := abi.Append(nil, got, typ, flags, seq, pid)
					if !bytes.Equal(again, b) {
						t.Fatalf("encoded again\n%x, first\n%x", again, b)
					}
					if canonical(got); !reflect.DeepEqual(got, m) {
						t.Fatalf("decoded %+v\nwant %+v", got, m)
					}
					n++
				}
				if n != 1 {
					t.Fatalf("%d messages", n)
				}
			}))
		}
	}
}
