// Package demo shows the gateway at work on one machine: four network namespaces in a row, two culvert processes with an ESP tunnel
// between them, and a generator that drives the tunnel and measures it.
package demo
