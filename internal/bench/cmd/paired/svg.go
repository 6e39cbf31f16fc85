package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A chart shows bars from left to right, one group below the other.
type chart struct {
	file, title, desc string
	axis              string
	ways              []way
	groups            []group
	limit             float64 // of Cloud KMS, which is drawn as a line; 0: none
	label             func(value float64) string
}

// A way is a bar's place in its group.
type way struct {
	name  string
	paint paint
}

// A group has a value for each way.
type group struct {
	name   string
	values []float64
}

// A paint stands for a colour in the reader's light or dark scheme: the drawing is made with
// placeholders, which become classes of a style sheet.
type paint struct {
	class       string
	placeholder color.RGBA
	light, dark string
}

// The colours are those of the other pictures in docs.
var (
	ink    = paint{"ink", color.RGBA{1, 0, 1, 255}, "#1f2328", "#f0f6fc"}
	fine   = paint{"fine", color.RGBA{2, 0, 2, 255}, "#d1d9e0", "#3d444d"}
	blue   = paint{"blue", color.RGBA{3, 0, 3, 255}, "#0969da", "#58a6ff"}
	green  = paint{"green", color.RGBA{4, 0, 4, 255}, "#1a7f37", "#3fb950"}
	purple = paint{"purple", color.RGBA{5, 0, 5, 255}, "#8250df", "#bc8cff"}
	amber  = paint{"amber", color.RGBA{6, 0, 6, 255}, "#bf8700", "#d29922"}
	red    = paint{"red", color.RGBA{7, 0, 7, 255}, "#cf222e", "#ff7b72"}
	grey   = paint{"grey", color.RGBA{8, 0, 8, 255}, "#6e7781", "#9198a1"}
	paints = []paint{ink, fine, blue, green, purple, amber, red, grey}
)

const paperLight, paperDark = "#ffffff", "#0d1117"

// draw draws what was measured. What -run left out has no picture.
func (p *pairing) draw(dir string) error {
	for _, c := range []chart{p.signChart(), p.verifyChart(), p.weightChart()} {
		if len(c.groups) == 0 {
			continue
		}
		data, err := c.svg()
		if err != nil {
			return fmt.Errorf("%s: %w", c.file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, c.file), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (p *pairing) signChart() chart {
	c := chart{
		file:  "bench-sign.svg",
		title: "What a signature takes beyond Google's bare call",
		axis:  "percent more than the bare call, which a server on loopback answers at once",
		ways:  []way{{"SignedString", blue}},
		limit: 2,
		label: func(v float64) string { return fmt.Sprintf("%+.1f %%", v) },
	}
	for _, name := range p.names {
		kind, ok := strings.CutPrefix(name, "sign/")
		if !ok {
			continue
		}
		if ratio, ok := p.ratios[name+"/SignedString/bare"]; ok {
			c.groups = append(c.groups, group{strings.TrimPrefix(kind, "kms/"), []float64{100 * (ratio - 1)}})
		}
	}
	c.describe()
	return c
}

func (p *pairing) verifyChart() chart {
	c := chart{
		file:  "bench-verify.svg",
		title: "What a verification takes, with the keys at hand",
		axis:  "microseconds, on one core",
		ways:  []way{{"gcpjwt", blue}, {"static", grey}, {"keyfunc", green}, {"go-oidc", purple}, {"jwx", amber}},
		label: func(v float64) string { return fmt.Sprintf("%.0f", v) },
	}
	for _, name := range []string{"RS256-2048", "PS256-2048", "ES256", "EdDSA", "jwks-RS256-2048", "jwks-ES256"} {
		g := group{name: strings.Replace(name, "jwks-", "JWK Set: ", 1)}
		for _, way := range c.ways {
			median, ok := p.medians["verify/"+name+"/"+way.name]
			if !ok {
				break
			}
			g.values = append(g.values, float64(median)/float64(time.Microsecond))
		}
		if len(g.values) == len(c.ways) {
			c.groups = append(c.groups, g)
		}
	}
	c.ways[1].name = "jwt with the key in a variable"
	c.describe()
	return c
}

func (p *pairing) weightChart() chart {
	c := chart{
		file:  "bench-weight.svg",
		title: "What a program weighs that verifies tokens",
		axis:  "megabytes of a stripped binary",
		ways:  []way{{"an HTTP server", blue}},
		label: func(v float64) string { return fmt.Sprintf("%.1f MB", v) },
	}
	for _, w := range p.weights {
		c.groups = append(c.groups, group{w.Name, []float64{float64(w.Bytes) / 1e6}})
	}
	c.describe()
	return c
}

// describe puts the figures into words, for those who can't see the bars.
func (c *chart) describe() {
	var b strings.Builder
	fmt.Fprintf(&b, "Bars, in %s.", c.axis)
	for _, g := range c.groups {
		fmt.Fprintf(&b, " %s:", g.name)
		for i, value := range g.values {
			fmt.Fprintf(&b, " %s %s;", c.ways[i].name, c.label(value))
		}
	}
	c.desc = strings.TrimSuffix(b.String(), ";") + "."
}

// Measures of a chart, in points.
const (
	width     = 800
	bar       = 13
	gap       = 9 // between groups
	frame     = 110
	labelSize = 11
)

// svg draws the chart.
func (c *chart) svg() ([]byte, error) {
	pl := plot.New()
	pl.BackgroundColor = color.Transparent
	pl.Title.Text, pl.X.Label.Text = c.title, c.axis
	pl.Title.Padding = 8
	for _, style := range []*text.Style{
		&pl.Title.TextStyle, &pl.X.Label.TextStyle, &pl.X.Tick.Label, &pl.Y.Tick.Label, &pl.Legend.TextStyle,
	} {
		style.Color = ink.placeholder
		style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: labelSize}
	}
	pl.Title.TextStyle.Font.Size, pl.Title.TextStyle.Font.Weight = 15, 3 // bold
	for _, axis := range []*plot.Axis{&pl.X, &pl.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = fine.placeholder, fine.placeholder
	}
	pl.Y.LineStyle.Width, pl.Y.Tick.Length = 0, 0

	groups := slices.Clone(c.groups)
	slices.Reverse(groups) // the axis goes up
	var names []string
	least, most := 0.0, c.limit
	for _, g := range groups {
		names = append(names, g.name)
		least, most = min(least, slices.Min(g.values)), max(most, slices.Max(g.values))
	}
	pl.NominalY(names...)
	room := 0.12 * (most - least) // for the figures
	pl.X.Min, pl.X.Max = least-room, most+room
	if least == 0 {
		pl.X.Min = 0
	}

	grid := plotter.NewGrid()
	grid.Horizontal.Width, grid.Vertical.Color = 0, fine.placeholder
	pl.Add(grid)
	if c.limit != 0 {
		line, err := plotter.NewLine(plotter.XYs{{X: c.limit, Y: -0.6}, {X: c.limit, Y: float64(len(groups)) - 0.4}})
		if err != nil {
			return nil, err
		}
		line.Color, line.Width, line.Dashes = red.placeholder, 1.5, []vg.Length{5, 4}
		pl.Add(line)
		pl.Legend.Add("limit for keys in Cloud KMS, but for ML-DSA", line)
	}
	for i, way := range c.ways {
		values := make(plotter.Values, len(groups))
		points := make(plotter.XYs, len(groups))
		labels := make([]string, len(groups))
		for j, g := range groups {
			values[j] = g.values[i]
			points[j] = plotter.XY{X: max(g.values[i], c.limit), Y: float64(j)} // beside bar and line
			labels[j] = c.label(g.values[i])
		}
		bars, err := plotter.NewBarChart(values, bar-2)
		if err != nil {
			return nil, err
		}
		// The first way is the topmost one of its group.
		offset := vg.Length(bar) * (vg.Length(len(c.ways)-1)/2 - vg.Length(i))
		bars.Horizontal, bars.Offset, bars.LineStyle.Width, bars.Color = true, offset, 0, way.paint.placeholder
		figures, err := plotter.NewLabels(plotter.XYLabels{XYs: points, Labels: labels})
		if err != nil {
			return nil, err
		}
		for j := range figures.TextStyle {
			style := &figures.TextStyle[j]
			style.Color, style.YAlign = ink.placeholder, draw.YCenter
			style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: labelSize - 1}
		}
		figures.Offset = vg.Point{X: 5, Y: offset + 1}
		pl.Add(bars, figures)
		if len(c.ways) > 1 {
			pl.Legend.Add(way.name, bars)
		}
	}
	pl.Legend.Top, pl.Legend.Left, pl.Legend.XOffs, pl.Legend.Padding = true, true, width/2, 3

	height := vg.Length(frame + len(groups)*(len(c.ways)*bar+gap))
	canvas := vgsvg.NewWith(vgsvg.UseWH(width, height))
	pl.Draw(draw.Crop(draw.New(canvas), 14, -18, 12, -12))
	var raw bytes.Buffer
	if _, err := canvas.WriteTo(&raw); err != nil {
		return nil, err
	}
	return c.dress(raw.Bytes(), int(height)), nil
}

var (
	stylePattern  = regexp.MustCompile(`style="([^"]*)"`)
	headPattern   = regexp.MustCompile(`(?s)^.*?<svg[^>]*>\s*(<!--[^>]*-->)?`)
	familyPattern = regexp.MustCompile(`font-family:[^;]*;(font-variant:[^;]*;)?`)
)

// dress replaces the placeholders by classes, and the font by one that the reader has.
func (c *chart) dress(data []byte, height int) []byte {
	body := headPattern.ReplaceAll(data, nil)
	body = stylePattern.ReplaceAllFunc(body, func(match []byte) []byte {
		style := string(match[len(`style="`) : len(match)-1])
		style = familyPattern.ReplaceAllString(style, "")
		var classes []string
		for _, p := range paints {
			hex := fmt.Sprintf("#%02X%02X%02X", p.placeholder.R, p.placeholder.G, p.placeholder.B)
			for _, property := range []string{"fill", "stroke"} {
				if rest := strings.Replace(style, property+":"+hex, "", 1); rest != style {
					style, classes = rest, append(classes, property+"-"+p.class)
				}
			}
		}
		style = strings.Trim(regexp.MustCompile(`;{2,}`).ReplaceAllString(style, ";"), ";")
		return fmt.Appendf(nil, `class="%s" style="%s"`, strings.Join(classes, " "), style)
	})
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %d" role="img" aria-labelledby="title desc">`+"\n", width, height, height)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n<style>\n", escaped(c.title), escaped(c.desc))
	// Those are as wide as the font that texts were placed with.
	b.WriteString("text{font-family:Arial,\"Liberation Sans\",Arimo,Helvetica,sans-serif}\n")
	sheet := func(paper string, colour func(paint) string) {
		fmt.Fprintf(&b, ".paper{fill:%s}\n", paper)
		for _, p := range paints {
			fmt.Fprintf(&b, ".fill-%s{fill:%s}.stroke-%[1]s{stroke:%[2]s}\n", p.class, colour(p))
		}
	}
	sheet(paperLight, func(p paint) string { return p.light })
	b.WriteString("@media (prefers-color-scheme:dark){\n")
	sheet(paperDark, func(p paint) string { return p.dark })
	fmt.Fprintf(&b, "}\n</style>\n<rect class=\"paper\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width, height)
	b.Write(bytes.TrimSpace(body))
	b.WriteByte('\n')
	return b.Bytes()
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}
