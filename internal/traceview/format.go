package traceview

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// duration writes nanoseconds with three digits: "840 ns", "12.3 µs", "1.25 ms", "3.10 s".
func duration(ns int64) string {
	v, unit := float64(ns), "ns"
	switch {
	case ns < 0:
		return "-" + duration(-ns)
	case ns < 1e3:
		return strconv.FormatInt(ns, 10) + " ns"
	case ns < 1e6:
		v, unit = v/1e3, "µs"
	case ns < 1e9:
		v, unit = v/1e6, "ms"
	default:
		v, unit = v/1e9, "s"
	}
	digits := 2
	if v >= 99.95 {
		digits = 0
	} else if v >= 9.995 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + unit
}

// size writes bytes in binary units.
func size(bytes string) string {
	n, err := strconv.ParseUint(bytes, 10, 64)
	if err != nil {
		return bytes + " B"
	}
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n), 0
	for ; v >= 1024 && u < len(units)-1; u++ {
		v /= 1024
	}
	if u == 0 {
		return bytes + " B"
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + units[u]
}

// count writes n with the noun that fits it.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// label is what a row is called: the span's name and what tells it from its siblings.
func label(s *Span) string {
	out := s.Name
	if l := s.Attr(keyLayer); l != "" {
		out += " · layer " + l
	}
	if p := s.Attr(keyProvider); p != "" {
		out += " · " + p
	}
	return out
}

// measure is what stands beside a bar.
func measure(s *Span) string {
	out := duration(s.duration())
	// First of all, since the end is clipped where there is no room: the text of an error begins with what is known already.
	result := s.Attr(keyResult)
	if s.Failed && result != "" {
		out += " · " + result
	}
	if b := s.Attr(keyBytes); b != "" {
		out += " · " + size(b)
	}
	if n := len(s.Events); n > 1 {
		out += fmt.Sprintf(" · %d events", n)
	}
	if s.Failed && result == "" {
		out += " · failed"
		if s.Status != "" {
			out += ": " + s.Status
		}
	}
	return out
}

func (p Process) title() string {
	out := p.Service
	if p.Node != "" {
		out += " @ " + p.Node
	}
	if p.PID != "" {
		out += " (pid " + p.PID + ")"
	}
	return out
}

// note says by whose clock a group is drawn.
func (g *Group) note() string {
	if g.SkewNanos <= 0 {
		return ""
	}
	return "clock at least " + duration(g.SkewNanos) + " behind its caller's"
}

const clockNote = "Each process is drawn by its host's own clock; between hosts, compare lengths rather than positions."

func startText(t *Timeline) string {
	return time.Unix(0, t.StartUnixNano).UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// ticks returns a step of 1, 2 or 5 times a power of ten nanoseconds that gives at most n steps in span.
func ticks(span int64, n int) int64 {
	want := float64(span) / float64(max(n, 1))
	step := math.Pow(10, math.Floor(math.Log10(math.Max(want, 1))))
	for _, m := range []float64{1, 2, 5, 10} {
		if step*m >= want {
			return int64(step * m)
		}
	}
	return int64(step * 10)
}

// tick writes a position in milliseconds with as many digits as the step needs.
func tick(at, step int64) string {
	digits := 0
	for s := step; s%1_000_000 != 0 && digits < 6; s *= 10 {
		digits++
	}
	return strconv.FormatFloat(float64(at)/1e6, 'f', digits, 64)
}

// clip shortens s to n runes, the last one an ellipsis.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	if n <= 1 {
		return strings.Repeat("…", max(n, 0))
	}
	return string(r[:n-1]) + "…"
}

// plain makes s fit for a terminal line and for XML: no control characters, none that turn the
// direction of writing, no invalid UTF-8.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		control := r < 0x20 || (r >= 0x7f && r < 0xa0) || r == 0xfffe || r == 0xffff
		direction := (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069)
		if control || direction {
			return '·'
		}
		return r
	}, strings.ToValidUTF8(s, "�"))
}

// details is a span's tooltip.
func details(t *Timeline, s *Span) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\nfrom %s to %s (%s)\n", plain(s.Name), plain(s.Process.title()), duration(s.StartUnixNano-t.StartUnixNano), duration(s.EndUnixNano-t.StartUnixNano), duration(s.duration()))
	if s.Failed {
		fmt.Fprintf(&b, "failed: %s\n", plain(s.Status))
	}
	for _, a := range s.Attributes {
		fmt.Fprintf(&b, "%s = %s\n", plain(a.Key), clip(plain(a.Value), 200))
	}
	fmt.Fprintf(&b, "span %s", s.SpanID)
	return b.String()
}
