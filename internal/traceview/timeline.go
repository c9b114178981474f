package traceview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Summary is one trace of a Set.
type Summary struct {
	TraceID       string `json:"trace_id"`
	Name          string `json:"name"` // of the first root
	StartUnixNano int64  `json:"start_unix_nano"`
	DurationNanos int64  `json:"duration_ns"`
	Spans         int    `json:"spans"`
	Processes     int    `json:"processes"`
	Failed        int    `json:"failed"` // spans that failed
}

// Row is one span in its group; Depth is 0 where its parent is in another process or unknown.
type Row struct {
	Span  *Span `json:"span"`
	Depth int   `json:"depth"`
}

// Group is one process of a timeline. SkewNanos is how much later at least the clock of the calling process is
// than this one's: the most by which a span here begins before its parent there. 0 where nothing shows.
type Group struct {
	Process   Process `json:"process"`
	Rows      []Row   `json:"rows"`
	SkewNanos int64   `json:"skew_ns,omitempty"`
}

// Timeline is one trace in the order in which it is drawn.
type Timeline struct {
	TraceID       string  `json:"trace_id"`
	StartUnixNano int64   `json:"start_unix_nano"`
	EndUnixNano   int64   `json:"end_unix_nano"`
	Groups        []Group `json:"groups"`
}

// Spans counts the timeline's spans.
func (t *Timeline) Spans() (n int) {
	for _, g := range t.Groups {
		n += len(g.Rows)
	}
	return n
}

// Traces lists the traces, the latest first.
func (s *Set) Traces() []Summary {
	out := make([]Summary, 0, len(s.traces))
	for id, spans := range s.traces {
		sum := Summary{TraceID: id, Spans: len(spans), StartUnixNano: spans[0].StartUnixNano}
		end := spans[0].EndUnixNano
		processes := map[Process]bool{}
		root := spans[0]
		for _, sp := range spans {
			sum.StartUnixNano = min(sum.StartUnixNano, sp.StartUnixNano)
			end = max(end, sp.EndUnixNano)
			processes[sp.Process] = true
			if sp.Failed {
				sum.Failed++
			}
			if before := cmp.Or(cmp.Compare(len(sp.ParentID), len(root.ParentID)), bySpan(sp, root)); before < 0 {
				root = sp // no parent first, then the earliest
			}
		}
		sum.Name, sum.DurationNanos, sum.Processes = root.Name, end-sum.StartUnixNano, len(processes)
		out = append(out, sum)
	}
	slices.SortFunc(out, func(a, b Summary) int {
		return cmp.Or(cmp.Compare(b.StartUnixNano, a.StartUnixNano), cmp.Compare(a.TraceID, b.TraceID))
	})
	return out
}

// Find resolves a trace id, the beginning of exactly one, or "latest".
func (s *Set) Find(name string) (string, error) {
	all := s.Traces()
	if len(all) == 0 {
		return "", fmt.Errorf("no trace in what was read")
	}
	if name == "latest" {
		return all[0].TraceID, nil
	}
	var found []string
	for _, t := range all {
		if strings.HasPrefix(t.TraceID, strings.ToLower(name)) {
			found = append(found, t.TraceID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no trace %.40q among %d; `trace list` shows them", name, len(all))
	}
	return "", fmt.Errorf("%.40q begins the ids of %d traces; give more digits", name, len(found))
}

// bySpan orders spans by start; of those that start together the longer one is above.
func bySpan(a, b *Span) int {
	return cmp.Or(cmp.Compare(a.StartUnixNano, b.StartUnixNano), cmp.Compare(b.EndUnixNano, a.EndUnixNano), cmp.Compare(a.SpanID, b.SpanID))
}

// Timeline orders the spans of a trace; nil where the trace is not there.
//
// A process comes after those that called it, and among equals in the order in which the trace reaches them from its
// roots; not by its first span's start, because the clocks of two hosts differ by more than a call takes.
func (s *Set) Timeline(traceID string) *Timeline {
	spans := slices.Clone(s.traces[traceID])
	if len(spans) == 0 {
		return nil
	}
	slices.SortFunc(spans, bySpan)
	t := &Timeline{TraceID: traceID, StartUnixNano: spans[0].StartUnixNano}
	byID := make(map[string]*Span, len(spans))
	for _, sp := range spans {
		byID[sp.SpanID] = sp
		t.EndUnixNano = max(t.EndUnixNano, sp.EndUnixNano)
	}
	children := map[string][]*Span{}
	var roots []*Span
	for _, sp := range spans {
		if byID[sp.ParentID] == nil {
			roots = append(roots, sp)
		} else {
			children[sp.ParentID] = append(children[sp.ParentID], sp)
		}
	}

	at := map[Process]int{}
	calls := map[[2]Process]bool{} // caller, called
	done := make(map[string]bool, len(spans))
	type visit struct {
		span  *Span
		depth int
	}
	walk := func(root *Span) {
		stack := []visit{{root, 0}}
		for len(stack) > 0 {
			v := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if done[v.span.SpanID] {
				continue
			}
			done[v.span.SpanID] = true
			g, ok := at[v.span.Process]
			if !ok {
				g = len(t.Groups)
				at[v.span.Process] = g
				t.Groups = append(t.Groups, Group{Process: v.span.Process})
			}
			group := &t.Groups[g]
			group.Rows = append(group.Rows, Row{Span: v.span, Depth: v.depth})
			if p := byID[v.span.ParentID]; p != nil && p.Process != v.span.Process {
				calls[[2]Process{p.Process, v.span.Process}] = true
				group.SkewNanos = max(group.SkewNanos, p.StartUnixNano-v.span.StartUnixNano)
			}
			below := children[v.span.SpanID]
			for i := len(below) - 1; i >= 0; i-- {
				depth := 0
				if below[i].Process == v.span.Process {
					depth = v.depth + 1
				}
				stack = append(stack, visit{below[i], depth})
			}
		}
	}
	for _, sp := range roots {
		walk(sp)
	}
	// Spans whose parent ids form a ring are reached from no root.
	for _, sp := range spans {
		walk(sp)
	}
	t.Groups = callersFirst(t.Groups, calls)
	return t
}

// callersFirst takes, again and again, the first group that no group left over calls. Where processes call each
// other in a ring, the first one left over goes next.
func callersFirst(groups []Group, calls map[[2]Process]bool) []Group {
	callers := map[Process]int{}
	for c := range calls {
		callers[c[1]]++
	}
	out := make([]Group, 0, len(groups))
	for left := groups; len(left) > 0; {
		next := max(0, slices.IndexFunc(left, func(g Group) bool { return callers[g.Process] == 0 }))
		out = append(out, left[next])
		for _, g := range left {
			if calls[[2]Process{left[next].Process, g.Process}] {
				callers[g.Process]--
			}
		}
		left = slices.Delete(slices.Clone(left), next, next+1)
	}
	return out
}
