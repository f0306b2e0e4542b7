package multibuf

//go:generate sh -c "cd gen && go run . -level deskeys -out ../deskeys.go"
//go:generate sh -c "cd gen && go run . -level cpuid -out ../cpuid_amd64.s -stubs ../cpuid_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level avx512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level avx2 -out ../avx2_amd64.s -stubs ../avx2_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level shani -out ../shani_amd64.s -stubs ../shani_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level sse -out ../sse_amd64.s -stubs ../sse_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level sse2 -out ../sse2_amd64.s -stubs ../sse2_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level arm64 -out ../kernels_arm64.s -stubs ../kernels_arm64.go"
