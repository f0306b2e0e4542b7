package multibuf

import (
	"reflect"
	"unsafe"
)

// image is the memory of what a pointer points to, if that is a struct of nothing but numbers, as the standard library's
// hashes are; otherwise nil. To copy it takes a few nanoseconds, and UnmarshalBinary some twenty, which is felt when there is
// one packet to authenticate.
func image(pointer any) []byte {
	v := reflect.ValueOf(pointer)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	t := v.Type().Elem()
	if t.Kind() != reflect.Struct || !onlyNumbers(t) {
		return nil
	}
	return unsafe.Slice((*byte)(v.UnsafePointer()), t.Size())
}

func onlyNumbers(t reflect.Type) bool {
	switch k := t.Kind(); {
	case k == reflect.Array:
		return onlyNumbers(t.Elem())
	case k == reflect.Struct:
		for i := range t.NumField() {
			if !onlyNumbers(t.Field(i).Type) {
				return false
			}
		}
		return true
	default:
		return k >= reflect.Bool && k <= reflect.Uint64
	}
}
