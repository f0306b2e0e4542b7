package soft

import (
	"reflect"
	"unsafe"
)

// The standard library keeps key schedules and hash states in plain structs behind pointers, and offers no way to wipe the
// former, and none to copy the latter that is both quick and free of allocation. These two functions do, for structs
// without pointers, whatever their fields are; where a toolchain has something else behind the interface they do nothing,
// and the caller has a slower way.

// memory is the memory of the struct that x points to, and nil unless x is a pointer to a struct without pointers in it.
func memory(x any) []byte {
	v := reflect.ValueOf(x)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || !plain(v.Type().Elem()) {
		return nil
	}
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Type().Elem().Size())
}

// wipe zeroes the plain fields of the struct that x points to: key schedules, keys, hash states. Nobody may use x after it.
func wipe(x any) {
	v := reflect.ValueOf(x)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return
	}
	t := v.Type().Elem()
	for i := range t.NumField() {
		if f := t.Field(i); plain(f.Type) {
			clear(unsafe.Slice((*byte)(unsafe.Add(v.UnsafePointer(), f.Offset)), f.Type.Size()))
		}
	}
}

// plain reports whether values of type t are nothing but numbers, so that their bytes can be copied and cleared.
func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.Array:
		return plain(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !plain(t.Field(i).Type) {
				return false
			}
		}
		return true
	default:
		return false
	}
}
