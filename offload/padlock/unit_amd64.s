#include "textflag.h"

// The assembler has no names for these.
#define REP_XCRYPTCBC BYTE $0xf3; BYTE $0x0f; BYTE $0xa7; BYTE $0xd0
#define REP_XSHA1     BYTE $0xf3; BYTE $0x0f; BYTE $0xa6; BYTE $0xc8
#define REP_XSHA256   BYTE $0xf3; BYTE $0x0f; BYTE $0xa6; BYTE $0xd0

// func hostCPUID(leaf uint32) (eax, ebx, ecx, edx uint32)
TEXT ·hostCPUID(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL AX, eax+8(FP)
	MOVL BX, ebx+12(FP)
	MOVL CX, ecx+16(FP)
	MOVL DX, edx+20(FP)
	RET

// func xcryptCBC(word, key, iv, src, dst *byte, n uintptr)
TEXT ·xcryptCBC(SB), NOSPLIT, $0-48
	MOVQ word+0(FP), DX
	MOVQ key+8(FP), BX
	MOVQ iv+16(FP), AX
	MOVQ src+24(FP), SI
	MOVQ dst+32(FP), DI
	MOVQ n+40(FP), CX
	// Loading EFLAGS makes the unit forget the key it has.
	PUSHFQ
	POPFQ
	REP_XCRYPTCBC
	// AX points to the next IV: where it was, or the last block written.
	MOVQ iv+16(FP), DI
	MOVQ 0(AX), CX
	MOVQ 8(AX), DX
	MOVQ CX, 0(DI)
	MOVQ DX, 8(DI)
	RET

// func xsha1(state, src *byte, done, count uintptr)
TEXT ·xsha1(SB), NOSPLIT, $0-32
	MOVQ state+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ done+16(FP), AX
	MOVQ count+24(FP), CX
	REP_XSHA1
	RET

// func xsha256(state, src *byte, done, count uintptr)
TEXT ·xsha256(SB), NOSPLIT, $0-32
	MOVQ state+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ done+16(FP), AX
	MOVQ count+24(FP), CX
	REP_XSHA256
	RET
