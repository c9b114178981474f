package layout

// Tag packs which pieces a WRITE carries: pieces (layer, first .. first+count-1). It travels as rdma.Op.Tag: layer in
// the top 14 bits, first and count in 25 bits each, so that MaxLayers and MaxBlocks fit.
type Tag uint64

// NewTag packs it.
func NewTag(layer, first, count uint32) Tag {
	return Tag(uint64(layer)<<50 | uint64(first)<<25 | uint64(count))
}

// Parts unpacks it.
func (t Tag) Parts() (layer, first, count uint32) {
	const m = 1<<25 - 1
	return uint32(t >> 50), uint32(t >> 25 & m), uint32(t & m)
}
