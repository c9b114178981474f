package traceview

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	minTerminal = 60
	maxTerminal = 400
)

// Terminal writes the timeline as text of at most width columns (60 to 400; outside it the nearest).
func Terminal(w io.Writer, t *Timeline, width int) error {
	width = min(max(width, minTerminal), maxTerminal)
	labels, measures := width*3/10, width/5
	bars := width - labels - measures - 2
	span := max(t.EndUnixNano-t.StartUnixNano, 1)
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "trace %s\n%s · %s · %s · %s\n", t.TraceID,
		startText(t), duration(span), count(t.Spans(), "span", "spans"), count(len(t.Groups), "process", "processes"))

	axis := []rune(strings.Repeat(" ", bars+measures))
	step := ticks(span, max(bars/12, 1))
	for at := int64(0); at <= span; at += step {
		x := int(float64(at) / float64(span) * float64(bars))
		text := "|" + tick(at, step)
		if at == 0 {
			text += " ms"
		}
		for i, r := range []rune(text) {
			if x+i < len(axis) {
				axis[x+i] = r
			}
		}
	}
	fmt.Fprintln(out, strings.TrimRight(strings.Repeat(" ", labels+1)+string(axis), " "))
	for i := range t.Groups {
		g := &t.Groups[i]
		title := plain(g.Process.title())
		if n := g.note(); n != "" {
			title += "   [" + n + "]"
		}
		fmt.Fprintln(out, clip(title, width))
		for _, r := range g.Rows {
			name := clip(strings.Repeat("  ", min(r.Depth+1, 8))+plain(label(r.Span)), labels)
			fmt.Fprintf(out, "%s%s %s %s\n", name, strings.Repeat(" ", labels-utf8.RuneCountInString(name)),
				bar(float64(r.Span.StartUnixNano-t.StartUnixNano)/float64(span), float64(r.Span.EndUnixNano-t.StartUnixNano)/float64(span), bars),
				clip(plain(measure(r.Span)), measures))
		}
	}
	if len(t.Groups) > 1 {
		fmt.Fprintln(out, clip(clockNote, width))
	}
	return out.Flush()
}

// bar draws from and to, both 0 to 1, in columns of which each has eight steps; a bar has one step at least.
func bar(from, to float64, columns int) string {
	a, b := int(from*float64(columns*8)), int(to*float64(columns*8))
	a = min(max(a, 0), columns*8-1)
	b = min(max(b, a+1), columns*8)
	var s strings.Builder
	for c := range columns {
		lo, hi := max(a-c*8, 0), min(b-c*8, 8)
		switch {
		case hi <= lo:
			s.WriteByte(' ')
		case lo == 0:
			s.WriteRune([]rune("▏▎▍▌▋▊▉█")[hi-1])
		case lo >= 4 || hi < 8: // blocks grow from the left only; the right half is the one exception
			s.WriteRune('▐')
		default:
			s.WriteRune('█')
		}
	}
	return s.String()
}
