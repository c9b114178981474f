package nic

// DMABufProber is a Device that can be asked whether it takes dma-bufs, which is how memory of a GPU comes to a card without the
// GPU's driver helping.
type DMABufProber interface {
	// ProbeDMABuf tries to register a dma-buf of descriptor -1, which never works, and gives the errno as an error: EBADF where the
	// kernel looked for the descriptor, so the device takes dma-bufs; EOPNOTSUPP or EPROTONOSUPPORT where it does not; a fault of
	// code NotSupported where the library is too old to ask.
	ProbeDMABuf() error
}
