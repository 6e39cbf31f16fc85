package main

// A tone is a pair of colours: of lines and words, and of the inside of boxes.
type tone string

const (
	ink    tone = "ink"    // what there is to read
	muted  tone = "muted"  // what is said besides
	plain  tone = "plain"  // what isn't ours, and questions
	blue   tone = "blue"   // signing
	green  tone = "green"  // verifying, and what is well
	purple tone = "purple" // tokens
	amber  tone = "amber"  // what is well for a while only
	red    tone = "red"    // what fails
)

// A colours is one of the two schemes.
type colours struct {
	media            string // the media query, for all but the first scheme
	paper            string
	lane, edge, fine string // the inside and the edge of a lane; guides
	tones            []toneColours
}

type toneColours struct {
	tone         tone
	line, inside string
}

// schemes are those of GitHub's pages. The paper is drawn too, so that a picture
// can be read where the page is light and the reader's scheme is dark.
var schemes = []colours{
	{"", "#ffffff", "#f6f8fa", "#d1d9e0", "#afb8c1", []toneColours{
		{ink, "#1f2328", "#ffffff"},
		{muted, "#525b65", "#ffffff"},
		{plain, "#6e7781", "#ffffff"},
		{blue, "#0969da", "#ddf4ff"},
		{green, "#1a7f37", "#dafbe1"},
		{purple, "#8250df", "#fbefff"},
		{amber, "#9a6700", "#fff8c5"},
		{red, "#cf222e", "#ffebe9"},
	}},
	{"(prefers-color-scheme:dark)", "#0d1117", "#151b23", "#3d444d", "#565e67", []toneColours{
		{ink, "#f0f6fc", "#0d1117"},
		{muted, "#a9b1ba", "#0d1117"},
		{plain, "#9198a1", "#0d1117"},
		{blue, "#58a6ff", "#10233f"},
		{green, "#3fb950", "#12291c"},
		{purple, "#bc8cff", "#251c3c"},
		{amber, "#d29922", "#2e2511"},
		{red, "#ff7b72", "#361a1d"},
	}},
}
