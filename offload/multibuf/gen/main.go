package main

import (
	"flag"
	"fmt"
	"os"

	"culvert/offload/multibuf/gen/arm64"

	. "github.com/mmcloughlin/avo/build"
)

// levels are what -level can say.
var levels = map[string]func(){
	"cpuid":  cpuid,
	"avx512": avx512,
	"avx2":   avx2,
	"shani":  shani,
	"sse":    sse,
	"sse2":   sse2,
}

var level = flag.String("level", "", "which level's kernels to write")

func main() {
	// avo parses the flags in Generate; which kernels there are has to be known before.
	flag.CommandLine.Init(os.Args[0], flag.ContinueOnError)
	for i, arg := range os.Args[1:] {
		if arg == "-level" && i+2 < len(os.Args) {
			*level = os.Args[i+2]
		}
	}
	if *level == "deskeys" {
		if err := desKeys(os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
		return
	}
	if *level == "arm64" {
		flag.Parse() // avo's
		option := func(name string) string { return flag.Lookup(name).Value.String() }
		if err := arm64.Write(option("out"), option("stubs"), armDES()); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
		return
	}
	emit, ok := levels[*level]
	if !ok {
		fmt.Fprintf(os.Stderr, "gen: -level %q: there is no such level\n", *level)
		os.Exit(2)
	}
	ConstraintExpr("amd64")
	emit()
	Generate()
}
