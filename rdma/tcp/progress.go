package tcp

import "github.com/kvxfer/kvxfer/rdma"

// Attached, a session's lanes in clear are read by whoever calls Progress, and their readers are held: they sleep where no input
// wakes them. A lane over TLS cannot be read in part, so its reader goes on; so do the readers where READs of many bytes are
// pending, which one thread alone would place slowly.

// helpFrom is how many bytes of pending READs make the readers help.
const helpFrom = 1 << 20

var _ rdma.Progressor = (*initiator)(nil)

// Attach holds the readers back.
func (i *initiator) Attach() {
	i.attachMu.Lock()
	defer i.attachMu.Unlock()
	if i.attached++; i.attached == 1 {
		i.hold(true)
	}
}

// Detach undoes an Attach.
func (i *initiator) Detach() {
	i.attachMu.Lock()
	defer i.attachMu.Unlock()
	if i.attached--; i.attached == 0 {
		i.hold(false)
	}
}

// hold is harmless on a session that has ended: its sockets are closed by the last user of their lanes, so each is used here.
func (i *initiator) hold(on bool) {
	i.isAttached.Store(on)
	for _, l := range i.lanes {
		if l.sock == nil || !l.use() {
			continue
		}
		if on {
			l.sock.hold()
		} else {
			l.sock.release()
		}
		l.unuse()
	}
}

// lookAtAll is how many calls of Progress look only at lanes that wait for something before one looks at all of them: a
// lane that ended says so on its own account.
const lookAtAll = 64

// readMore notes pending bytes of READs, or with less that they are over. mu is held.
func (i *initiator) readMore(n uint64) {
	was := i.reading >= helpFrom
	i.reading += n
	if is := i.reading >= helpFrom; is != was {
		for _, l := range i.lanes {
			if l.sock == nil {
				continue
			}
			if l.sock.help.Store(is); is {
				l.sock.wake()
			}
		}
	}
}

// Progress reads what has come on the lanes that wait for something.
func (i *initiator) Progress() (n int) {
	if !i.isAttached.Load() || !i.crew.join(1) {
		return 0
	}
	all := i.looks.Add(1)%lookAtAll == 0
	var busy int64
	for _, l := range i.lanes {
		w := l.waiting.Load()
		if l.sock == nil || w == 0 && !all || !l.use() {
			continue
		}
		busy += w
		l.progress()
		l.unuse()
	}
	if i.crew.deliver(&i.box, &n) {
		i.crew.leave()
	}
	if n == 0 && busy > 1 {
		yield() // to those who move so much
	}
	return n
}

// progress reads what has come on one lane, unless somebody else is at it.
func (l *initLane) progress() {
	if !l.rxMu.TryLock() {
		return
	}
	var err error
	for done := true; done && err == nil; {
		done, err = l.readFrame()
	}
	l.rxMu.Unlock()
	if err != nil {
		l.i.fail(err)
	}
}
