// Package segment cuts super-packets as a network card would, for links that have no kernel to do it. It is written for clarity, and
// independently of the data plane, which can be checked by it.
package segment
