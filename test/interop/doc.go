// Package interop compares ESP packets with what other people's programs and the RFCs say they are: engine by engine
// (engines_test.go, rfc_test.go, judged_test.go), and through the whole data plane (plane_test.go).
package interop
