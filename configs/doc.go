// Package configs reads the gateway's configuration: one TOML file, strict, every mistake reported at once with its file, line
// and column, what is wrong and how to mend it.
//
//	errors.go      Pos, Error, Errors, Warning, and the classes of mistakes
//	document.go    TOML text → tables and values with their places (go-toml's parser; what its decoder refuses is refused here)
//	table.go       the reader of one table: a key's name, type and bounds in one place; what nobody asks for is unknown
//	load.go        Load, LoadBytes; files and their modes
//	access.go      who else could read or replace a file with keys
//	config.go      Config and its parts: what a configuration says
//	read.go        tables → Config, in the order of the file
//	keys.go        key material: digits, files, lengths, weak and shared keys
//	selectors.go   subnets and [[policy]] → policies; overlaps between which nothing decides
//	params.go      Config → sa.Params, sa.Policy, inner MTUs
//	diff.go        what a reload changes, and what of it needs a restart
//	print.go       what prints of it: no keys
//	examples.go    the commented examples and the systemd unit, embedded
//
// Two choices of the schema are there so that nothing is decided by accident. Policies that overlap must differ in priority;
// there is no most specific one that wins. And because a bypass is a route, which knows destinations and the most specific of
// them first, it selects by remote alone, and is refused where its route and its priority would decide differently.
//
// Key material goes from the file into offload.Key and nowhere else: the text that it was read from is wiped, and no error
// quotes the value of a setting that holds a key or names its file. Other values are quoted, up to a length.
package configs
