package rdma

// Way is one of several ways that a session uses, for people: a port of this node's joined with one of the peer's.
type Way struct {
	Local, Peer         string // their names, as each node has them
	LocalAddr, PeerAddr string // the addresses that are used
	MTU                 int    // bytes of payload in a packet; 0: unknown
	Shared              bool   // one of the ports is part of another way too
	Why                 string // why these two were joined
}

// WaysTeller is an Initiator of a provider that chooses ways. The others have one way, and nothing was chosen.
type WaysTeller interface {
	// Ways gives the session's ways in the order of the local names and, in words, what is not used and why. It does not wait.
	Ways() (ways []Way, unused []string)
}
