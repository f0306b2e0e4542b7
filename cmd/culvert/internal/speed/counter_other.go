//go:build !amd64 && !386

package speed

// There is no counter of cycles that a program may read everywhere.
func readCounter() uint64                   { return 0 }
func counterSteady() bool                   { return false }
func declaredHz() (hz float64, leaf string) { return 0, "" }
