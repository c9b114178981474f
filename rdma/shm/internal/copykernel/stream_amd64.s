#include "textflag.h"

// The first 32 bytes are stored plainly and unaligned, then dst goes up to a multiple of 32, so that every streamed store
// fills an aligned half of a cache line; the last 32 bytes are stored plainly again and overlap what came before.

// func streamCopy(dst, src, n uintptr)
TEXT ·streamCopy(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	LEAQ -32(SI)(CX*1), R8
	LEAQ -32(DI)(CX*1), R9
	VMOVDQU (SI), Y0
	VMOVDQU Y0, (DI)
	MOVQ DI, AX
	ANDQ $31, AX
	NEGQ AX
	ADDQ $32, AX
	ADDQ AX, DI
	ADDQ AX, SI
	SUBQ AX, CX

big:
	CMPQ CX, $256
	JB   small
	PREFETCHT0 1024(SI)
	PREFETCHT0 1088(SI)
	PREFETCHT0 1152(SI)
	PREFETCHT0 1216(SI)
	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVDQU 128(SI), Y4
	VMOVDQU 160(SI), Y5
	VMOVDQU 192(SI), Y6
	VMOVDQU 224(SI), Y7
	VMOVNTDQ Y0, 0(DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	VMOVNTDQ Y4, 128(DI)
	VMOVNTDQ Y5, 160(DI)
	VMOVNTDQ Y6, 192(DI)
	VMOVNTDQ Y7, 224(DI)
	ADDQ $256, SI
	ADDQ $256, DI
	SUBQ $256, CX
	JMP  big

small:
	CMPQ CX, $32
	JB   tail
	VMOVDQU (SI), Y0
	VMOVNTDQ Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	SUBQ $32, CX
	JMP  small

tail:
	VMOVDQU (R8), Y0
	VMOVDQU Y0, (R9)
	VZEROUPPER
	RET

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET
