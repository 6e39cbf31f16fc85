package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// style is what both schemes share. Everything takes its colours from the class
// of its tone. The fonts are those of the reader's system.
const style = `text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:currentColor}
.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
.bold{font-weight:600}
.box{stroke:currentColor;stroke-width:1.5}
.line{fill:none;stroke:currentColor;stroke-width:2}
.mark{fill:currentColor;stroke:currentColor;stroke-width:2}
.dashed{stroke-dasharray:6 4}
.head{fill:currentColor}
`

// svg returns the drawing as an SVG document, the same bytes each time.
func (d *drawing) svg() []byte {
	w := new(writer)
	w.f(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d" role="img" aria-labelledby="title desc">`, width, d.height, d.height)
	w.f(`<title id="title">%s</title>`, escaped(d.title))
	w.f(`<desc id="desc">%s</desc>`, escaped(d.desc))
	w.f("<style>\n%s</style>", style+schemeStyles())
	w.f(`<rect class="paper" width="%d" height="%d" rx="8"/>`, width, d.height)
	for _, l := range d.lanes {
		w.f(`<rect class="lane" x="%d" y="%d" width="%d" height="%d" rx="8"/>`, l.x, l.y, l.w, l.h)
		w.text(l.title)
	}
	for _, g := range d.guides {
		w.f(`<path class="guide" d="M%d,%dV%d"/>`, g.x, g.y1, g.y2)
	}
	for _, a := range d.arrows {
		class := "line"
		if a.dashed {
			class = "line dashed"
		}
		w.f(`<path class="%s %s" d="%s"/>`, class, a.tone, a.path())
		w.f(`<path class="head %s" d="%s"/>`, a.tone, a.head())
	}
	for _, b := range d.boxes {
		w.f(`<rect class="box %s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`, b.tone, b.x, b.y, b.w, b.h)
		for _, line := range b.lines {
			w.text(line)
		}
	}
	for _, m := range d.marks {
		w.f(`<path class="mark %s" d="M%d,%d%s"/>`, m.tone, m.at.x, m.at.y, m.sign)
	}
	for _, l := range d.labels {
		w.text(l)
	}
	w.f(`</svg>`)
	return w.Bytes()
}

type writer struct{ bytes.Buffer }

// f writes a line.
func (w *writer) f(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

func (w *writer) text(t text) {
	class := string(t.tone)
	if t.bold {
		class += " bold"
	}
	var content strings.Builder
	for i, part := range strings.Split(t.text, "`") {
		if i%2 == 1 {
			part = `<tspan class="code">` + escaped(part) + `</tspan>`
		} else {
			part = escaped(part)
		}
		content.WriteString(part)
	}
	w.f(`<text class="%s" x="%d" y="%d" text-anchor="%s" font-size="%d">%s</text>`, class, t.at.x, t.at.y, t.anchor, t.size, &content)
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

func schemeStyles() string {
	var b strings.Builder
	for _, s := range schemes {
		if s.media != "" {
			fmt.Fprintf(&b, "@media %s{\n", s.media)
		}
		fmt.Fprintf(&b, ".paper{fill:%s}\n.lane{fill:%s;stroke:%s}\n.guide{stroke:%s}\n", s.paper, s.lane, s.edge, s.fine)
		for _, t := range s.tones {
			fmt.Fprintf(&b, ".%s{color:%s}.box.%s{fill:%s}\n", t.tone, t.line, t.tone, t.inside)
		}
		if s.media != "" {
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// The shape of arrows, in pixels.
const (
	cornerRadius = 8
	headLength   = 9
	headWidth    = 5 // to each side
)

// path returns the line of the arrow, with round corners. It ends inside the head.
func (a arrow) path() string {
	last := len(a.points) - 1
	var b strings.Builder
	fmt.Fprintf(&b, "M%d,%d", a.points[0].x, a.points[0].y)
	for i, p := range a.points[1:last] {
		in, out := p.towards(a.points[i], cornerRadius), p.towards(a.points[i+2], cornerRadius)
		fmt.Fprintf(&b, "L%d,%dQ%d,%d %d,%d", in.x, in.y, p.x, p.y, out.x, out.y)
	}
	tip := a.points[last].towards(a.points[last-1], headLength-2)
	fmt.Fprintf(&b, "L%d,%d", tip.x, tip.y)
	return b.String()
}

func (a arrow) head() string {
	tip, from := a.points[len(a.points)-1], a.points[len(a.points)-2]
	base := tip.towards(from, headLength)
	across := point{headWidth, 0}
	if tip.y == from.y {
		across = point{0, headWidth}
	}
	return fmt.Sprintf("M%d,%dL%d,%dL%d,%dz", tip.x, tip.y,
		base.x+across.x, base.y+across.y, base.x-across.x, base.y-across.y)
}

// towards returns the point that is n pixels from p on the way to q, which is
// straight above, below or beside it.
func (p point) towards(q point, n int) point {
	return point{p.x + n*direction(q.x-p.x), p.y + n*direction(q.y-p.y)}
}

func direction(n int) int { return min(max(n, -1), 1) }
