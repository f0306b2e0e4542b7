// Package test holds what judges the whole of Culvert: the rules of the tree (here), the judges that other people wrote (judge),
// interoperation packet by packet (interop), gateways as processes in network namespaces (e2e), and the runner with its tally.
package test
