package traceview

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"strings"
)

// Options of a picture.
type Options struct {
	Width int    // pixels, 640 to 4000; 0 means 1200
	Title string // "" means the name of the longest span
}

// MaxRows is how many spans a picture shows; of a longer timeline the first rows are drawn and the rest counted.
const MaxRows = 2000

// colors are one a process, in turn: light enough for dark text beside them, told apart also by the colour-blind.
var colors = []string{"#3b76c4", "#e08214", "#2a9d74", "#9a5fc0", "#c2577a", "#7a7a2e", "#3aa3b8", "#8c6248"}

// charWidth is a letter's width in ems of the fonts used, on average and a little more, since nothing measures here.
const charWidth = 0.56

// picture holds the measures of one SVG, in pixels.
type picture struct {
	out                        *bufio.Writer
	t                          *Timeline
	width, left, right         float64
	top, bottom                float64
	row, bar, font, groupTitle float64
	span                       int64
}

// SVG draws the timeline as one self-contained SVG file: a row a span with its label, the bars to scale over an axis
// in milliseconds, a colour a process, events as ticks on their bar, and each span's attributes as its tooltip.
func SVG(w io.Writer, t *Timeline, opt Options) error {
	p := &picture{out: bufio.NewWriter(w), t: t, row: 17, bar: 11, font: 11, groupTitle: 26, span: max(t.EndUnixNano-t.StartUnixNano, 1)}
	p.width = float64(min(max(opt.Width, 640), 4000))
	if opt.Width == 0 {
		p.width = 1200
	}
	rows := min(t.Spans(), MaxRows)
	switch {
	case rows > 400:
		p.row, p.bar, p.font = 9, 6, 7.5
	case rows > 60:
		p.row, p.bar, p.font = 13, 8, 9.5
	}
	p.left = p.labelWidth(rows)
	p.right = p.width - p.measureWidth(rows)
	p.top = 92
	if len(t.Groups) > 1 {
		p.top = p.legendHeight() + 80
	}
	p.bottom = p.top + float64(rows)*p.row + float64(len(t.Groups))*p.groupTitle + 6
	height := p.bottom + 44

	title := opt.Title
	if title == "" {
		title = longest(t)
	}
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" role="img"`+
		` font-family="system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f">`+"\n", p.width, height, p.width, height)
	p.printf("<title>%s</title>\n%s", escape(title), style)
	p.printf(`<rect class="bg" width="100%%" height="100%%"/>` + "\n")
	p.text(20, 30, 18, "ink", "start", `font-weight="600"`, clip(plain(title), int((p.width-40)/18/charWidth)))
	p.text(20, 49, 11, "dim", "start", "", fmt.Sprintf("trace %s  ·  %s  ·  %s  ·  %s", t.TraceID,
		startText(t), duration(p.span), count(t.Spans(), "span", "spans")))
	if len(t.Groups) > 1 {
		p.legend()
	}
	p.rows()
	p.axis()
	p.text(20, height-14, 10.5, "dim", "start", "", p.footer(rows))
	p.printf("</svg>\n")
	return p.out.Flush()
}

// style colours by class so that a viewer in dark mode can turn the page over; where that is not understood the
// background is light and drawn, so the picture reads the same on a dark page.
const style = `<style>
.bg{fill:#ffffff}.band{fill:#f3f5f8}.ink{fill:#1c2430}.dim{fill:#66707d}.grid{stroke:#dfe3e9}
.lead{stroke:#c9d0d9;stroke-dasharray:1 4}.event{stroke:#1c2430}.bad{fill:#c62828}.badbar{stroke:#c62828}
@media (prefers-color-scheme: dark){
.bg{fill:#14181e}.band{fill:#1c222b}.ink{fill:#e6eaf0}.dim{fill:#98a2b0}.grid{stroke:#2c343f}
.lead{stroke:#3d4754}.event{stroke:#ffffff}.bad{fill:#ff8a80}.badbar{stroke:#ff8a80}}
</style>
`

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(p.out, format, args...) }

func (p *picture) text(x, y, size float64, class, anchor, more, s string) {
	p.printf(`<text x="%.1f" y="%.1f" font-size="%.4g" class="%s" text-anchor="%s" %s>%s</text>`+"\n", x, y, size, class, anchor, more, escape(s))
}

// escape also takes out what XML cannot hold at all; line ends are kept for tooltips.
func escape(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = html.EscapeString(plain(l))
	}
	return strings.Join(lines, "\n")
}

func textWidth(s string, size float64) float64 { return float64(len([]rune(s))) * size * charWidth }

// labelWidth gives labels the room they need, up to a third of the picture.
func (p *picture) labelWidth(rows int) float64 {
	need := 120.0
	for _, g := range p.t.Groups {
		for _, r := range g.Rows[:min(len(g.Rows), rows)] {
			need = max(need, p.indent(r)+textWidth(label(r.Span), p.font)+14)
		}
	}
	return min(need, p.width/3)
}

// measureWidth keeps room at the right for what stands beside the longest bars; longer texts find it at the left of
// their bar, or are clipped.
func (p *picture) measureWidth(rows int) float64 {
	need := 24.0
	for _, g := range p.t.Groups {
		for _, r := range g.Rows[:min(len(g.Rows), rows)] {
			need = max(need, textWidth(measure(r.Span), p.font-1)+12)
		}
	}
	return min(need, 190)
}

func longest(t *Timeline) (name string) {
	most := int64(-1)
	for _, g := range t.Groups {
		for _, r := range g.Rows {
			if d := r.Span.duration(); d > most {
				name, most = r.Span.Name, d
			}
		}
	}
	return name
}

func (p *picture) indent(r Row) float64 { return 28 + float64(min(r.Depth, 8))*p.font }

// x is the position of a time, within the plot whatever the time.
func (p *picture) x(at int64) float64 {
	f := float64(at-p.t.StartUnixNano) / float64(p.span)
	return p.left + min(max(f, 0), 1)*(p.right-p.left)
}

// legendWalk calls do with the place of each legend entry and returns the height of all.
func (p *picture) legendWalk(do func(x, y float64, g *Group, s string)) float64 {
	x, y := 20.0, 0.0
	for i := range p.t.Groups {
		s := clip(plain(p.t.Groups[i].Process.title()), 60)
		w := textWidth(s, 11) + 34
		if x > 20 && x+w > p.width-20 {
			x, y = 20, y+18
		}
		do(x, y, &p.t.Groups[i], s)
		x += w
	}
	return y + 18
}

func (p *picture) legendHeight() float64 {
	return p.legendWalk(func(float64, float64, *Group, string) {})
}

func (p *picture) legend() {
	i := 0
	p.legendWalk(func(x, y float64, _ *Group, s string) {
		p.printf(`<rect x="%.1f" y="%.1f" width="11" height="11" rx="2" fill="%s"/>`+"\n", x, y+61, colors[i%len(colors)])
		p.text(x+17, y+70.5, 11, "ink", "start", "", s)
		i++
	})
}

// rows draws the groups: a band with its title, then label, bar and measure of each span. Grid lines come between
// the bands and the bars.
func (p *picture) rows() {
	y, left := p.top, MaxRows
	for i := range p.t.Groups {
		g := &p.t.Groups[i]
		h := p.groupTitle + float64(min(len(g.Rows), left))*p.row
		if i%2 == 0 {
			p.printf(`<rect class="band" x="0" y="%.1f" width="%.1f" height="%.1f"/>`+"\n", y, p.width, h)
		}
		y, left = y+h, left-min(len(g.Rows), left)
	}
	step := p.step()
	for at := int64(0); at <= p.span; at += step {
		x := p.x(p.t.StartUnixNano + at)
		p.printf(`<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", x, x, p.top, p.bottom-6)
	}
	y, left = p.top, MaxRows
	for i := range p.t.Groups {
		g := &p.t.Groups[i]
		color := colors[i%len(colors)]
		p.printf(`<rect x="0" y="%.1f" width="4" height="%.1f" fill="%s"/>`+"\n", y, p.groupTitle+float64(min(len(g.Rows), left))*p.row, color)
		title := plain(g.Process.title())
		if n := g.note(); n != "" {
			title += "  ·  " + n
		}
		p.text(16, y+17, 12, "ink", "start", `font-weight="600"`, clip(title, int(p.width/12/charWidth)-4))
		y += p.groupTitle
		for j, r := range g.Rows[:min(len(g.Rows), left)] {
			parent := j+1 < len(g.Rows) && g.Rows[j+1].Depth > r.Depth
			p.drawSpan(y, color, r, parent)
			y += p.row
		}
		left -= min(len(g.Rows), left)
	}
}

// drawSpan draws one row at y; a parent is paler than what it consists of.
func (p *picture) drawSpan(y float64, color string, r Row, parent bool) {
	s := r.Span
	base := y + p.row/2 + p.font*0.36
	x, w := p.x(s.StartUnixNano), max(p.x(s.EndUnixNano)-p.x(s.StartUnixNano), 2)
	x = min(x, p.right-w)
	top := y + (p.row-p.bar)/2
	class := "ink"
	if s.Failed {
		class = "bad"
	}
	p.printf("<g><title>%s</title>\n", escape(details(p.t, s)))
	indent := p.indent(r)
	p.text(indent, base, p.font, class, "start", "", clip(plain(label(s)), int((p.left-8-indent)/p.font/charWidth)))
	// A faint line leads the eye from the label to a bar far away.
	if from := indent + textWidth(label(s), p.font) + 6; x-from > 60 {
		p.printf(`<line class="lead" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", max(from, p.left), x-6, y+p.row/2, y+p.row/2)
	}
	opacity := "0.95"
	if parent {
		opacity = "0.55"
	}
	mark := ""
	if s.Failed {
		mark = ` class="badbar" stroke-width="1.5"`
	}
	p.printf(`<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" rx="%.1f" fill="%s" fill-opacity="%s"%s/>`+"\n",
		x, top, w, p.bar, min(2, w/2), color, opacity, mark)
	for _, e := range s.Events {
		ex := min(max(p.x(e.TimeUnixNano), x), x+w)
		p.printf(`<line class="event" x1="%.2f" x2="%.2f" y1="%.2f" y2="%.2f" stroke-width="1"><title>%s</title></line>`+"\n",
			ex, ex, top-1, top+p.bar+1, escape(p.eventText(e)))
	}
	m := plain(measure(s))
	small := p.font - 1
	room := p.width - 4 - (x + w + 5)
	if need := textWidth(m, small); need > room && x-5-need >= p.left {
		p.text(x-5, base, small, "dim", "end", "", m)
	} else {
		p.text(x+w+5, base, small, "dim", "start", "", clip(m, int(room/small/charWidth)))
	}
	p.printf("</g>\n")
}

func (p *picture) eventText(e Event) string {
	s := fmt.Sprintf("%s at %s", plain(e.Name), duration(e.TimeUnixNano-p.t.StartUnixNano))
	for _, a := range e.Attributes {
		s += fmt.Sprintf("\n%s = %s", plain(a.Key), clip(plain(a.Value), 200))
	}
	return s
}

func (p *picture) step() int64 { return ticks(p.span, int((p.right-p.left)/75)) }

// axis writes the times above the plot, and below it where the plot is tall.
func (p *picture) axis() {
	step := p.step()
	for _, y := range []float64{p.top - 6, p.bottom + 10} {
		if y > p.top && p.bottom-p.top < 500 {
			continue
		}
		for at := int64(0); at <= p.span; at += step {
			s := tick(at, step)
			if at == 0 {
				s += " ms"
			}
			p.text(p.x(p.t.StartUnixNano+at), y, 10.5, "dim", "middle", "", s)
		}
	}
}

func (p *picture) footer(rows int) string {
	s := "Point at a bar for its attributes."
	if n := p.t.Spans() - rows; n > 0 {
		s = count(n, "more span is", "more spans are") + " not drawn. " + s
	}
	if len(p.t.Groups) > 1 {
		s += " " + clockNote
	}
	return s
}
