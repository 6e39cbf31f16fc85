package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestFiles checks that docs has what the program draws, and no other pictures but those of
// measurements, which .ci/bench -svg draws.
func TestFiles(t *testing.T) {
	const docs = "../../docs"
	var want []string
	for _, p := range pictures {
		path := filepath.Join(docs, p.file)
		want = append(want, path)
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, p.draw().svg()) {
			t.Errorf("%s isn't what the program draws now: go run ./internal/pictures -out docs", p.file)
		}
	}
	got, err := filepath.Glob(filepath.Join(docs, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	got = slices.DeleteFunc(got, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "bench-") })
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("docs has the pictures %v, want %v", got, want)
	}
}

// TestXML checks that the files are XML that can be read aloud and loads nothing.
func TestXML(t *testing.T) {
	for _, p := range pictures {
		t.Run(p.file, func(t *testing.T) {
			var (
				names   = make(map[string]int)
				decoder = xml.NewDecoder(bytes.NewReader(p.draw().svg()))
				within  string
			)
			for {
				token, err := decoder.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				switch token := token.(type) {
				case xml.StartElement:
					within = token.Name.Local
					names[within]++
					for _, a := range token.Attr {
						if a.Name.Local != "xmlns" && strings.Contains(a.Value, "//") || a.Name.Local == "href" {
							t.Errorf("<%s> has %s=%q", within, a.Name.Local, a.Value)
						}
					}
				case xml.CharData:
					if within == "style" && (bytes.Contains(token, []byte("url(")) || bytes.Contains(token, []byte("@import"))) {
						t.Errorf("the style loads something: %s", token)
					}
				}
			}
			for name, want := range map[string]int{"title": 1, "desc": 1, "style": 1, "image": 0, "script": 0} {
				if got := names[name]; got != want {
					t.Errorf("got %d <%s>, want %d", got, name, want)
				}
			}
			if d := p.draw(); len(d.title) < 10 || len(d.desc) < 100 {
				t.Errorf("title %q or description %q is too short for somebody who can't see the picture", d.title, d.desc)
			}
		})
	}
}

// TestLayout checks that nothing hides anything else.
func TestLayout(t *testing.T) {
	for _, p := range pictures {
		t.Run(p.file, func(t *testing.T) {
			for _, fault := range p.draw().faults() {
				t.Error(fault)
			}
		})
	}
}

// TestFaults checks that TestLayout would find each kind of fault.
func TestFaults(t *testing.T) {
	for _, test := range []struct {
		want string
		draw func(d *drawing)
	}{
		{"", func(d *drawing) {
			d.lane(rect{20, 20, 300, 150}, "Title")
			d.box(blue, rect{40, 60, 100, 40}, "One", "`two`")
			d.box(blue, rect{140, 60, 100, 40}, "Two")
			d.arrow(blue, 90, 180, 90, 100)
			d.label(ink, start, 100, 130, "Three")
			d.mark(red, dot, 60, 120)
			d.guide(140, 40, 160)
		}},
		{`box "One" overlaps box "Two"`, func(d *drawing) {
			d.box(blue, rect{40, 60, 100, 40}, "One")
			d.box(blue, rect{139, 60, 100, 40}, "Two")
		}},
		{`text "Rather a long line of words" doesn't fit its box`, func(d *drawing) {
			d.box(blue, rect{40, 60, 100, 40}, "Rather a long line of words")
		}},
		{`text "three" doesn't fit its box`, func(d *drawing) {
			d.box(blue, rect{40, 60, 100, 50}, "One", "two", "three")
		}},
		{`label "One" overlaps label "Two"`, func(d *drawing) {
			d.label(ink, start, 40, 60, "One")
			d.label(ink, end, 60, 70, "Two")
		}},
		{`box "Two" overlaps label "One"`, func(d *drawing) {
			d.label(ink, middle, 40, 60, "One")
			d.box(blue, rect{50, 40, 100, 40}, "Two")
		}},
		{`label "One" overlaps mark`, func(d *drawing) {
			d.label(ink, start, 40, 60, "One")
			d.mark(red, cross, 38, 56)
		}},
		{`label "One" leaves the drawing`, func(d *drawing) { d.label(ink, start, width-20, 60, "One") }},
		{`box "One" leaves the drawing`, func(d *drawing) { d.box(ink, rect{40, 260, 100, 50}, "One") }},
		{`box "One" leaves its lane`, func(d *drawing) {
			d.lane(rect{20, 20, 300, 150}, "Title")
			d.box(blue, rect{40, 140, 100, 40}, "One")
		}},
		{`box "One" overlaps label "Title"`, func(d *drawing) {
			d.lane(rect{20, 20, 300, 150}, "Title")
			d.box(blue, rect{40, 30, 100, 40}, "One")
		}},
		{`arrow crosses box "One"`, func(d *drawing) {
			d.box(blue, rect{40, 60, 100, 40}, "One")
			d.arrow(blue, 90, 50, 90, 110)
		}},
		{`arrow crosses label "One"`, func(d *drawing) {
			d.label(ink, start, 40, 60, "One")
			d.arrow(blue, 20, 55, 100, 55)
		}},
		{"arrow isn't along the axes", func(d *drawing) { d.arrow(blue, 20, 55, 100, 65) }},
		{"arrow has a part that is too short", func(d *drawing) { d.arrow(blue, 20, 50, 20, 60, 100, 60) }},
		{`guide crosses label "One"`, func(d *drawing) {
			d.label(ink, start, 40, 60, "One")
			d.guide(45, 20, 80)
		}},
		{`text "a ` + "`" + `b" doesn't end its code`, func(d *drawing) { d.label(ink, start, 40, 60, "a `b") }},
	} {
		t.Run(test.want, func(t *testing.T) {
			d := &drawing{height: 300}
			test.draw(d)
			if got := strings.Join(d.faults(), "; "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// faults says what is wrong with the drawing.
func (d *drawing) faults() (faults []string) {
	fault := func(parts ...string) { faults = append(faults, strings.Join(parts, " ")) }

	type thing struct {
		name string
		rect
	}
	var things []thing // none of which may overlap another
	code := func(t text) {
		if strings.Count(t.text, "`")%2 != 0 {
			fault("text", strconv.Quote(t.text), "doesn't end its code")
		}
	}
	for _, b := range d.boxes {
		things = append(things, thing{"box " + strconv.Quote(b.lines[0].text), b.rect})
		for _, line := range b.lines {
			code(line)
			if !line.rect().within(b.inset(8, 2)) {
				fault("text", strconv.Quote(line.text), "doesn't fit its box")
			}
		}
	}
	labels := slices.Clone(d.labels)
	for _, l := range d.lanes {
		labels = append(labels, l.title)
	}
	for _, l := range labels {
		code(l)
		things = append(things, thing{"label " + strconv.Quote(l.text), l.rect()})
	}
	for _, m := range d.marks {
		things = append(things, thing{"mark", rect{m.at.x - 5, m.at.y - 5, 10, 10}})
	}

	for i, a := range things {
		if !a.within(rect{0, 0, width, d.height}.inset(8, 8)) {
			fault(a.name, "leaves the drawing")
		}
		for _, l := range d.lanes {
			if a.overlaps(l.rect) && !a.within(l.rect) {
				fault(a.name, "leaves its lane")
			}
		}
		for _, b := range things[i+1:] {
			if a.overlaps(b.rect) {
				fault(a.name, "overlaps", b.name)
			}
		}
	}

	crosses := func(what string, line rect) {
		for _, thing := range things {
			if line.overlaps(thing.rect) && thing.name != "mark" && (what != "guide" || strings.HasPrefix(thing.name, "label")) {
				fault(what, "crosses", thing.name)
			}
		}
	}
	for _, g := range d.guides {
		crosses("guide", rect{g.x, g.y1, 1, g.y2 - g.y1})
	}
	for _, a := range d.arrows {
		for i, p := range a.points[1:] {
			from := a.points[i]
			length := abs(p.x-from.x) + abs(p.y-from.y)
			switch {
			case p.x != from.x && p.y != from.y:
				fault("arrow isn't along the axes")
			case length < headLength+cornerRadius:
				fault("arrow has a part that is too short")
			default:
				crosses("arrow", rect{min(p.x, from.x), min(p.y, from.y), max(1, abs(p.x-from.x)), max(1, abs(p.y-from.y))})
			}
		}
	}
	return faults
}

func abs(n int) int { return max(n, -n) }

func (r rect) overlaps(o rect) bool {
	return r.x < o.x+o.w && o.x < r.x+r.w && r.y < o.y+o.h && o.y < r.y+r.h
}

func (r rect) within(o rect) bool {
	return r.x >= o.x && r.y >= o.y && r.x+r.w <= o.x+o.w && r.y+r.h <= o.y+o.h
}

func (r rect) inset(x, y int) rect { return rect{r.x + x, r.y + y, r.w - 2*x, r.h - 2*y} }

// rect returns the area that the text takes up in a wide font.
func (t text) rect() rect {
	var ems float64
	for i, part := range strings.Split(t.text, "`") {
		for _, r := range part {
			if i%2 == 1 {
				ems += 0.92 * 0.602 // code is smaller, and each character as wide as the others
			} else {
				ems += advance(r)
			}
		}
	}
	if t.bold {
		ems *= 1.1
	}
	r := rect{t.at.x, t.at.y - t.size*3/4, int(math.Ceil(ems * float64(t.size))), t.size}
	switch t.anchor {
	case middle:
		r.x -= r.w / 2
	case end:
		r.x -= r.w
	}
	return r
}

// advance estimates the width of a character in em. The measure is DejaVu Sans, which
// is wider than the fonts that most readers have.
func advance(r rune) float64 {
	switch {
	case strings.ContainsRune(" ijl'|.,:;’I", r):
		return 0.32
	case strings.ContainsRune("frt()-/", r):
		return 0.4
	case strings.ContainsRune("mMwW@%+", r):
		return 0.9
	case 'A' <= r && r <= 'Z':
		return 0.7
	}
	return 0.61
}

// TestContrast checks that all words can be read in both schemes: the ratio that
// WCAG 2 asks for text is 4.5, and 3 for lines.
func TestContrast(t *testing.T) {
	for _, s := range schemes {
		tones := make(map[tone]toneColours)
		for _, c := range s.tones {
			tones[c.tone] = c
		}
		check := func(what, a, b string, least float64) {
			if got := contrast(t, a, b); got < least {
				t.Errorf("scheme %q, %s: %s on %s has a contrast of %.2f, want %.1f", s.media, what, a, b, got, least)
			}
		}
		for _, name := range []tone{ink, muted, plain, blue, green, purple, amber, red} {
			c, ok := tones[name]
			if !ok {
				t.Errorf("scheme %q lacks %s", s.media, name)
				continue
			}
			check("label in "+string(name), c.line, s.paper, 4.5)
			check("edge of a box in "+string(name), c.line, c.inside, 3)
			check("heading in "+string(name), tones[ink].line, c.inside, 4.5)
			check("line in "+string(name), tones[muted].line, c.inside, 4.5)
		}
		check("title of a lane", tones[ink].line, s.lane, 4.5)
	}
}

// contrast is defined at https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimPrefix(colour, "#"), 16, 24)
	if err != nil || len(colour) != 7 {
		t.Fatalf("%q is no colour", colour)
	}
	var sum float64
	for i, weight := range []float64{0.0722, 0.7152, 0.2126} {
		c := float64(n>>(8*i)&0xff) / 255
		if c <= 0.04045 {
			sum += weight * c / 12.92
		} else {
			sum += weight * math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return sum
}
