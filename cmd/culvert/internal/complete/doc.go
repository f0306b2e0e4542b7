// Package complete offers the values of flags to shells, as `culvert completion` sets them up.
//
//	complete.go  Flag, List: one value, or several with commas between them
//	values.go    transforms, key lengths and engines
package complete
