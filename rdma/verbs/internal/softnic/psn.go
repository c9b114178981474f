package softnic

// Packet sequence numbers have 24 bits and wrap.
const psnMask = 1<<24 - 1

func psnAdd(p, n uint32) uint32 { return (p + n) & psnMask }

// psnDiff is a - b, from -2^23 to 2^23 - 1.
func psnDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }
