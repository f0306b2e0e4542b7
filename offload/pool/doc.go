// Package pool is an engine that runs another, synchronous one on several goroutines, so that the packets of a single SA
// keep more than one core busy.
//
// A burst is the unit: a worker takes one whole, runs it through its own lane of the inner engine, and puts it into the
// finished queue of the lane that it came from. Bursts overtake each other; who needs order restores it. The workers are
// shared by all lanes. They start with the first lane and stop with the last one's Close: an engine without lanes costs
// nothing.
package pool
