// Package arm64 writes the arm64 level's kernels, which avo cannot, and the declarations of their Go functions.
//
//	write.go  Write: all kernels of the level, into one file
//	aes.go    AES
//	des.go    3DES
//	md5.go    MD5
//	sha.go    SHA-1, SHA-256, SHA-512
package arm64
