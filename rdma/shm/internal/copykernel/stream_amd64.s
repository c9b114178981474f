#include "textflag.h"

// The first 64 bytes are stored plainly and unaligned, then dst goes up to a multiple of 64, so that streamed stores fill whole
// cache lines; the last 64 bytes are stored plainly again and overlap what came before. What lies between is copied as two
// halves at once, 128 bytes of each in turn: the processor fetches ahead in two places then, and a core has more lines on
// their way from memory. There is no prefetch instruction, which was slower than what the processor does by itself (doc.go).

// func streamCopy(dst, src, n uintptr)
TEXT ·streamCopy(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	LEAQ -64(SI)(CX*1), R8
	LEAQ -64(DI)(CX*1), R9

	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	MOVQ DI, AX
	ANDQ $63, AX
	NEGQ AX
	ADDQ $64, AX
	ADDQ AX, DI
	ADDQ AX, SI
	SUBQ AX, CX

	// DX: the length of a half, a multiple of 128; R10, R11: where the second halves begin.
	MOVQ CX, DX
	SHRQ $1, DX
	ANDQ $~127, DX
	LEAQ (SI)(DX*1), R10
	LEAQ (DI)(DX*1), R11
	SUBQ DX, CX
	SUBQ DX, CX

halves:
	CMPQ DX, $128
	JB   rest
	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVDQU 0(R10), Y4
	VMOVDQU 32(R10), Y5
	VMOVDQU 64(R10), Y6
	VMOVDQU 96(R10), Y7
	VMOVNTDQ Y0, 0(DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	VMOVNTDQ Y4, 0(R11)
	VMOVNTDQ Y5, 32(R11)
	VMOVNTDQ Y6, 64(R11)
	VMOVNTDQ Y7, 96(R11)
	ADDQ $128, SI
	ADDQ $128, R10
	ADDQ $128, DI
	ADDQ $128, R11
	SUBQ $128, DX
	JMP  halves

	// R10 and R11 are behind the second halves; less than 256 bytes are left.
rest:
	CMPQ CX, $64
	JB   tail
	VMOVDQU (R10), Y0
	VMOVDQU 32(R10), Y1
	VMOVNTDQ Y0, (R11)
	VMOVNTDQ Y1, 32(R11)
	ADDQ $64, R10
	ADDQ $64, R11
	SUBQ $64, CX
	JMP  rest

tail:
	VMOVDQU (R8), Y0
	VMOVDQU 32(R8), Y1
	VMOVDQU Y0, (R9)
	VMOVDQU Y1, 32(R9)
	VZEROUPPER
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET
