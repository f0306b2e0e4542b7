package ipsecmb

// Options shape the engine. The zero value is good.
type Options struct {
	// Level forces one of the library's implementations, by a name of Engine.Levels; "": the best that this machine runs.
	Level string
	// TripleDES offers the library's 3DES too: for measuring, not for use.
	TripleDES bool
}
