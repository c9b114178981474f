//go:build !amd64

package copykernel

const canStream = false

func streamCopy(dst, src, n uintptr) { copy(bytes(dst, n), bytes(src, n)) }

func streamAhead(dst, src, n, _ uintptr) { copy(bytes(dst, n), bytes(src, n)) }

func storeFence() {}
