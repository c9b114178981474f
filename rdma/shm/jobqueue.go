package shm

// jobQueue is the jobs that workers may help with, the pool's lock guards it.
type jobQueue struct{ head, tail *job }

func (q *jobQueue) push(j *job) {
	j.queued, j.behind = true, nil
	if q.tail == nil {
		q.head = j
	} else {
		q.tail.behind = j
	}
	q.tail = j
}

func (q *jobQueue) pop() *job {
	j := q.head
	if q.head = j.behind; q.head == nil {
		q.tail = nil
	}
	j.queued, j.behind = false, nil
	return j
}

func (q *jobQueue) remove(j *job) {
	var before *job
	for x := q.head; x != j; x = x.behind {
		before = x
	}
	if before == nil {
		q.head = j.behind
	} else {
		before.behind = j.behind
	}
	if q.tail == j {
		q.tail = before
	}
	j.queued, j.behind = false, nil
}

// offer lets workers take chunks of a job and wakes as many as there are chunks for.
func (p *pool) offer(j *job, chunks int) {
	j.refs.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered.push(j)
	for range min(chunks, p.workers) {
		p.wake.Signal()
	}
}

// withdraw takes a job of which every chunk is taken out of the queue.
func (p *pool) withdraw(j *job) {
	p.mu.Lock()
	queued := j.queued
	if queued {
		p.offered.remove(j)
	}
	p.mu.Unlock()
	if queued {
		j.release()
	}
}

// nextJob gives a job to work on, which the caller then holds; nil: it is a task's turn. What has chunks left goes to the end of the
// queue, so that a large job does not hold up others. The lock is held.
func (p *pool) nextJob() *job {
	if p.head != nil && !p.jobsTurn {
		p.jobsTurn = true
		return nil
	}
	p.jobsTurn = false
	for p.offered.head != nil {
		j := p.offered.pop()
		if j.left() {
			j.refs.Add(1)
			p.offered.push(j)
			return j
		}
		j.release()
	}
	return nil
}

// copier gives a copier to a caller of Move.
func (p *pool) copier() *copier {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.copiers); n > 0 {
		c := p.copiers[n-1]
		p.copiers = p.copiers[:n-1]
		return c
	}
	return newCopier()
}

func (p *pool) giveBack(c *copier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		c.close()
		return
	}
	p.copiers = append(p.copiers, c)
}
