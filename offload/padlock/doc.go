// Package padlock is the engine that runs the instructions of VIA's PadLock themselves: in C3 (Nehemiah), C7 and Nano
// processors, and in Zhaoxin's that have inherited them, for 386 and amd64. No system call is made and no driver is needed.
//
//	detect.go   what CPUID says of the processor, and why it has no PadLock
//	prove.go    what CPUID does not say, tried out: unaligned data, three ways to hash
//	padlock.go  Engine, its lane: the burst loop, seal and open
//	session.go  session: control words, key schedule, HMAC states; closing
//	cipher.go   rep xcryptcbc: alignment, page ends
//	mac.go      HMAC over rep xsha1, rep xsha256 or the standard library
//	keys.go     AES key schedules as the unit reads them
//	unit_*.s    the instructions; unit_*.go their declarations
//
// It offers every transform with AES in CBC mode. The HMACs of SHA-1 and SHA-256 are computed by the unit where it has a
// hash engine (C7 and later); the other hashes, and all of them on a C3, by the standard library. 3DES, GCM and ChaCha20 are
// not PadLock's and not offered.
//
// # Rules of the hardware
//
//   - Control word, key and IV lie at multiples of 16 bytes, and so does a hash's state, which has room of 128 bytes. They live
//     in heap memory: that of a goroutine's stack moves.
//   - A C3 wants the data aligned too; later ones take any address if bit 5 of the control word is set. Where it is not
//     so, data passes through an aligned buffer.
//   - The unit reads up to 64 bytes beyond the data in CBC mode (all that is known of any stepping's prefetch). The end of
//     data that ends nearer than that to the end of a page passes through the same buffer: the next page may not exist.
//   - The unit keeps the key of its last operation until EFLAGS is loaded. Goroutines change threads and threads change
//     processors, so that every operation is preceded by PUSHF, POPF in the same routine, and reads its key anew.
//   - Keys of 128 bits are expanded by the unit; schedules of 192 and 256 bits are handed to it, in the byte order of FIPS 197. Other
//     software has had these wrong for years, unnoticed; that a key length is right is for package offload's known
//     answers to find out.
//   - An instruction interrupted by a signal goes on from its registers. Neither is a goroutine preempted inside it, nor
//     does the garbage collector move what it works on.
package padlock
