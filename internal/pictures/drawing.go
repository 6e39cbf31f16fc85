package main

// width is that of every drawing. At this width the text of a picture in a
// document is about as large as the text around it.
const width = 800

// Sizes of text, and the distance of two lines, in pixels.
const (
	headingSize = 14
	bodySize    = 13
	lineHeight  = 18
)

// A drawing is what one picture shows. Everything on it lies on whole pixels.
type drawing struct {
	title, desc string // for those who can't see it
	height      int

	lanes  []lane
	guides []guide
	arrows []arrow
	boxes  []box
	marks  []mark
	labels []text
}

// A lane is a large area with a title, for boxes that belong together.
type lane struct {
	rect
	title text
}

// A box has a heading and below it, in a lighter colour, further lines.
type box struct {
	rect
	tone  tone
	lines []text
}

// An arrow runs along the axes. Its head is at its last point.
type arrow struct {
	tone   tone
	dashed bool
	points []point
}

// A guide is a thin line from top to bottom that marks a moment. Boxes hide it.
type guide struct{ x, y1, y2 int }

// A mark is a small sign for something that happens at a moment.
type mark struct {
	tone tone
	sign sign
	at   point
}

// A text is one line. Words between backquotes are code.
type text struct {
	tone   tone
	at     point // of its baseline
	anchor anchor
	size   int
	bold   bool
	text   string
}

type (
	point  struct{ x, y int }
	rect   struct{ x, y, w, h int }
	anchor string // the part of a text that is at its point
	sign   string // the path of a mark around its point
)

const (
	start  anchor = "start"
	middle anchor = "middle"
	end    anchor = "end"
)

const (
	dot      sign = "m-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0z"
	cross    sign = "m-4,-4l8,8m0,-8l-8,8"
	triangle sign = "m-4,-4h8l-4,7z"
)

func (d *drawing) lane(at rect, title string) {
	d.lanes = append(d.lanes, lane{at, text{ink, point{at.x + 16, at.y + 24}, start, headingSize, true, title}})
}

// box places the lines in the middle of the box.
func (d *drawing) box(t tone, at rect, heading string, lines ...string) {
	b := box{rect: at, tone: t}
	p := point{at.x + at.w/2, at.y + (at.h-lineHeight*(1+len(lines)))/2 + headingSize}
	b.lines = append(b.lines, text{ink, p, middle, headingSize, true, heading})
	for _, line := range lines {
		p.y += lineHeight
		b.lines = append(b.lines, text{muted, p, middle, bodySize, false, line})
	}
	d.boxes = append(d.boxes, b)
}

// arrow takes the points of the arrow as x, y, x, y and so on.
func (d *drawing) arrow(t tone, points ...int) {
	d.arrows = append(d.arrows, arrow{t, false, pairs(points)})
}

// dashed is an arrow of something that travels rather than a call.
func (d *drawing) dashed(t tone, points ...int) {
	d.arrows = append(d.arrows, arrow{t, true, pairs(points)})
}

func pairs(values []int) []point {
	points := make([]point, len(values)/2)
	for i := range points {
		points[i] = point{values[2*i], values[2*i+1]}
	}
	return points
}

// label writes lines below each other, the first one's baseline at y.
func (d *drawing) label(t tone, a anchor, x, y int, lines ...string) {
	for i, line := range lines {
		d.labels = append(d.labels, text{t, point{x, y + i*lineHeight}, a, bodySize, false, line})
	}
}

// heading is a label in bold.
func (d *drawing) heading(a anchor, x, y int, line string) {
	d.labels = append(d.labels, text{ink, point{x, y}, a, headingSize, true, line})
}

func (d *drawing) guide(x, y1, y2 int) { d.guides = append(d.guides, guide{x, y1, y2}) }

func (d *drawing) mark(t tone, s sign, x, y int) { d.marks = append(d.marks, mark{t, s, point{x, y}}) }

// barHeight is that of the bars of a row.
const barHeight = 32

// A bar is a state from one moment to another.
type bar struct {
	tone     tone
	from, to int
	text     string
}

// row says at the left whose states the bars at y are, and bars draws them.
func (d *drawing) row(y int, name string, details ...string) {
	d.heading(start, 24, y+14, name)
	d.label(muted, start, 24, y+14+lineHeight, details...)
}

func (d *drawing) bars(y int, bars ...bar) {
	for _, b := range bars {
		d.box(b.tone, rect{b.from, y, b.to - b.from, barHeight}, b.text)
	}
}

// span says how much time there is between two moments.
func (d *drawing) span(t tone, x1, x2, y int, line string) {
	center := (x1 + x2) / 2
	d.arrow(t, center, y, x1+2, y)
	d.arrow(t, center, y, x2-2, y)
	d.label(t, middle, center, y-8, line)
}
