package rdma

// TryFencer is a Target whose fences mostly have nobody to wait for. As with all of prompt.go: users ask with a type assertion
// and do without where it is not there.
type TryFencer interface {
	// TryFence is Fence where nothing is in progress that it would have to wait for: true says that the window is fenced, as
	// nil does of Fence. After false the window may be open or closed, and Fence must follow. It never waits, and may be called
	// with locks held that events are taken under.
	TryFence(k Key) (fenced bool)
}
