#include "textflag.h"

// The assembler has no names for these.
#define REP_XCRYPTCBC BYTE $0xf3; BYTE $0x0f; BYTE $0xa7; BYTE $0xd0
#define REP_XSHA1     BYTE $0xf3; BYTE $0x0f; BYTE $0xa6; BYTE $0xc8
#define REP_XSHA256   BYTE $0xf3; BYTE $0x0f; BYTE $0xa6; BYTE $0xd0

// func hostCPUID(leaf uint32) (eax, ebx, ecx, edx uint32)
TEXT ·hostCPUID(SB), NOSPLIT, $0-20
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL AX, eax+4(FP)
	MOVL BX, ebx+8(FP)
	MOVL CX, ecx+12(FP)
	MOVL DX, edx+16(FP)
	RET

// func xcryptCBC(word, key, iv, src, dst *byte, n uintptr)
TEXT ·xcryptCBC(SB), NOSPLIT, $0-24
	MOVL word+0(FP), DX
	MOVL key+4(FP), BX
	MOVL iv+8(FP), AX
	MOVL src+12(FP), SI
	MOVL dst+16(FP), DI
	MOVL n+20(FP), CX
	// Loading EFLAGS makes the unit forget the key it has.
	PUSHFL
	POPFL
	REP_XCRYPTCBC
	// AX points to the next IV: where it was, or the last block written.
	MOVL iv+8(FP), DI
	MOVL 0(AX), BX
	MOVL 4(AX), CX
	MOVL 8(AX), DX
	MOVL 12(AX), SI
	MOVL BX, 0(DI)
	MOVL CX, 4(DI)
	MOVL DX, 8(DI)
	MOVL SI, 12(DI)
	RET

// func xsha1(state, src *byte, done, count uintptr)
TEXT ·xsha1(SB), NOSPLIT, $0-16
	MOVL state+0(FP), DI
	MOVL src+4(FP), SI
	MOVL done+8(FP), AX
	MOVL count+12(FP), CX
	REP_XSHA1
	RET

// func xsha256(state, src *byte, done, count uintptr)
TEXT ·xsha256(SB), NOSPLIT, $0-16
	MOVL state+0(FP), DI
	MOVL src+4(FP), SI
	MOVL done+8(FP), AX
	MOVL count+12(FP), CX
	REP_XSHA256
	RET
