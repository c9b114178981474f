package softnic

// entry is something that happens at an instant: a packet is delivered, a queue pair looks at its timers, or a
// device's stores arrive in memory.
type entry struct {
	at     int64 // nanoseconds on the fabric's clock
	number uint64
	p      *packet
	q      *qp
	a      *Adapter
}

// schedule is a heap in the order (at, number). It is written out because container/heap allocates for each entry.
type schedule struct {
	list   []entry
	number uint64
}

func (s *schedule) less(i, k int) bool {
	a, b := &s.list[i], &s.list[k]
	return a.at < b.at || a.at == b.at && a.number < b.number
}

func (s *schedule) push(e entry) {
	s.number++
	e.number = s.number
	s.list = append(s.list, e)
	for i := len(s.list) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.less(i, up) {
			return
		}
		s.list[i], s.list[up] = s.list[up], s.list[i]
		i = up
	}
}

// due takes the first entry when its instant has come.
func (s *schedule) due(now int64) (entry, bool) {
	if len(s.list) == 0 || s.list[0].at > now {
		return entry{}, false
	}
	first, last := s.list[0], len(s.list)-1
	s.list[0], s.list[last] = s.list[last], entry{}
	s.list = s.list[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first, true
		}
		if down+1 < last && s.less(down+1, down) {
			down++
		}
		if !s.less(down, i) {
			return first, true
		}
		s.list[i], s.list[down] = s.list[down], s.list[i]
		i = down
	}
}

// next is the instant of the first entry.
func (s *schedule) next() (int64, bool) {
	if len(s.list) == 0 {
		return 0, false
	}
	return s.list[0].at, true
}
