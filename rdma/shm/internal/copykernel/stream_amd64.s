#include "textflag.h"

// Both functions copy n bytes, a multiple of 64, to a dst that is a multiple of 64, as two halves at once, 128 bytes of each in turn:
// the processor fetches ahead in two places then, and a core has more lines on their way from memory. All stores are streamed and
// of whole cache lines: a plain store to a line of which streamed ones are under way costs more than a page's copy (doc.go).

// HALVES: DX is the length of a half, a multiple of 128; SI and DI are at the first halves, R10 and R11 at the second, CX is what is
// left behind both.
#define HALVES \
	MOVQ dst+0(FP), DI \
	MOVQ src+8(FP), SI \
	MOVQ n+16(FP), CX \
	MOVQ CX, DX \
	SHRQ $1, DX \
	ANDQ $~127, DX \
	LEAQ (SI)(DX*1), R10 \
	LEAQ (DI)(DX*1), R11 \
	SUBQ DX, CX \
	SUBQ DX, CX

#define TURN \
	VMOVDQU 0(SI), Y0 \
	VMOVDQU 32(SI), Y1 \
	VMOVDQU 64(SI), Y2 \
	VMOVDQU 96(SI), Y3 \
	VMOVDQU 0(R10), Y4 \
	VMOVDQU 32(R10), Y5 \
	VMOVDQU 64(R10), Y6 \
	VMOVDQU 96(R10), Y7 \
	VMOVNTDQ Y0, 0(DI) \
	VMOVNTDQ Y1, 32(DI) \
	VMOVNTDQ Y2, 64(DI) \
	VMOVNTDQ Y3, 96(DI) \
	VMOVNTDQ Y4, 0(R11) \
	VMOVNTDQ Y5, 32(R11) \
	VMOVNTDQ Y6, 64(R11) \
	VMOVNTDQ Y7, 96(R11) \
	ADDQ $128, SI \
	ADDQ $128, R10 \
	ADDQ $128, DI \
	ADDQ $128, R11 \
	SUBQ $128, DX

// func streamCopy(dst, src, n uintptr)
TEXT ·streamCopy(SB), NOSPLIT, $0-24
	HALVES
	JMP  halves

halve:
	TURN

halves:
	TESTQ DX, DX
	JNZ  halve

	// R10 and R11 are behind the second halves; less than 256 bytes are left.
rest:
	TESTQ CX, CX
	JZ   done
	VMOVDQU (R10), Y0
	VMOVDQU 32(R10), Y1
	VMOVNTDQ Y0, (R11)
	VMOVNTDQ Y1, 32(R11)
	ADDQ $64, R10
	ADDQ $64, R11
	SUBQ $64, CX
	JMP  rest

done:
	VZEROUPPER
	RET

// func streamAhead(dst, src, n, next uintptr)
TEXT ·streamAhead(SB), NOSPLIT, $0-32
	HALVES
	MOVQ next+24(FP), R8
	LEAQ (R8)(DX*1), R9
	JMP  halves

halve:
	PREFETCHT0 (R8)
	PREFETCHT0 64(R8)
	PREFETCHT0 (R9)
	PREFETCHT0 64(R9)
	ADDQ $128, R8
	ADDQ $128, R9
	TURN

halves:
	TESTQ DX, DX
	JNZ  halve

rest:
	TESTQ CX, CX
	JZ   done
	VMOVDQU (R10), Y0
	VMOVDQU 32(R10), Y1
	VMOVNTDQ Y0, (R11)
	VMOVNTDQ Y1, 32(R11)
	ADDQ $64, R10
	ADDQ $64, R11
	SUBQ $64, CX
	JMP  rest

done:
	VZEROUPPER
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET
