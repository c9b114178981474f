package gate

// TryShut is Shut where nobody is inside: true says that the gate is shut. After false nothing has changed.
func (g *Gate) TryShut() bool {
	if !Fences {
		return true
	}
	if !g.mu.TryLock() {
		return false
	}
	g.shut = true
	g.mu.Unlock()
	return true
}
