package softnic

import "unsafe"

// move copies n bytes, as a device does by DMA: without a word to the race detector. Applications read memory that packets are
// landing in, and real devices do not ask either. The copy is a loop of its own because the built-in copy tells the detector what
// it touches from inside the runtime, where norace does not reach; the pointers of a registration are checked by hand before.
//
//go:norace
//go:nocheckptr
func move(dst, src unsafe.Pointer, n int) {
	i := 0
	for ; i+32 <= n; i += 32 {
		d, s := (*[4]uint64)(unsafe.Add(dst, i)), (*[4]uint64)(unsafe.Add(src, i))
		d[0], d[1], d[2], d[3] = s[0], s[1], s[2], s[3]
	}
	for ; i < n; i++ {
		*(*byte)(unsafe.Add(dst, i)) = *(*byte)(unsafe.Add(src, i))
	}
}
