package multibuf

//go:generate sh -c "cd gen && go run . -level deskeys -out ../deskeys.go"
//go:generate sh -c "cd gen && go run . -level cpuid -out ../cpuid_amd64.s -stubs ../cpuid_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level avx512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg multibuf"
//go:generate sh -c "cd gen && go run . -level arm64 -out ../kernels_arm64.s -stubs ../kernels_arm64.go"
