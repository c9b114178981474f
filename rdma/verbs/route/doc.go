// Package route asks the host what rdma/verbs/pick is not to know by itself: the addresses of its interfaces, and whether a route
// leads from an address through an interface to a peer's.
//
// The kernel's tables are asked (RTM_GETROUTE of rtnetlink, which anybody may). A connected UDP socket would not do: bound to an
// interface, IPv4's answer is yes without any route, the destination being taken as on the link; and not bound to one, the
// route may leave through another card, which RDMA cannot. A packet is never sent.
//
// Invariants, each with the test that holds it:
//   - a route counts only if it is in the tables and leaves through the interface: TestReach
//   - the same in network namespaces with several cards and routers: TestReachBetweenCards
//   - whatever the kernel answers is read within its bounds: FuzzAnswer
package route
