package multibuf

// levels are those of amd64, the best first.
var levels = []level{avx512, avx2, shani, sse, sse2}
