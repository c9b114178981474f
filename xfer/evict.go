package xfer

// TryEvict is Evict where nothing has to be waited for, so that the caller is held up by nobody: no permission names the blocks,
// and no own transfer whose end is being told. Not done: nothing was changed, and Evict is to be called.
func (e *Engine) TryEvict(id ClientID, cacheID uint64, blocks []uint32) (done bool, err error) {
	const op = "evict"
	ca, err := e.ownCache(op, id, cacheID)
	if err != nil {
		return true, err
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return true, err
	}
	e.mu.Lock()
	telling, err := e.ownUsers(op, ca, blocks)
	e.mu.Unlock()
	if err != nil {
		return true, err
	}
	if len(telling) > 0 || len(e.touching(ca, blocks)) > 0 {
		return false, nil
	}
	return true, ca.evict(op, blocks)
}
