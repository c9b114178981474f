// Package pick decides which ports of a host are used for RDMA, which of them is joined with which of a peer's, with which GIDs,
// and which one carries the next bytes. It is pure: what it needs of the world (addresses, routes, time) it is given; rdma/verbs/route
// asks the host for it.
//
// Terms. A rail is one active port that may be used, with the GIDs that may be used on it, best first. A pair is a rail here and
// a rail of the peer's that are joined, with a GID of each. The name of a rail is "device:port".
//
// GIDs on Ethernet: RoCE v2 alone. An IPv4 address comes before a global IPv6 one, that before a unique-local one, and link-local
// ones come last: nobody can tell by such an address on which link it is. An index says nothing.
//
// Pairs. Two rails can be joined when their link layers are the same and there is a GID of each of one IP version such that the
// peer's is in the subnet of the own one (best), or a route leads there from the own one's interface. InfiniBand ports are joined
// when their subnet prefixes are the same. As many rails as can be get a partner of their own; of all ways to do so that one is
// taken with the fewest pairs outside a subnet, then the best GIDs, then the same NUMA node, then the same place in the order of
// names. A rail that is left over shares a partner, of those that are no worse joined than the others are.
//
// Invariants, each with the test that holds it:
//   - what may not be used is no rail, and why is told: TestLocal
//   - the order of GIDs: TestOrderOfGIDs
//   - no rail is used twice where there are enough, and none is left out that could be joined with a free one: TestPairsProperties
//   - of all ways to join them the best one is taken: TestPairsAreTheBest
//   - the order of the inputs changes nothing: TestPairsProperties
//   - rails in equal subnets are joined, whatever they are called: TestSubnetsPair
//   - each rail is in a pair or in one of the reasons: TestPairsProperties, TestWhyUnpaired
//   - what is told of a pair is what was chosen: TestWay
//   - the choice of a rail follows the predicted end of the transfer, and a slow rail is tried again: TestCheapest, TestRate
package pick
