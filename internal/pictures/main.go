// Command pictures draws the pictures of the documents as SVG files:
//
//	go run ./internal/pictures -out docs
//
// Each picture is a function that puts boxes, arrows and labels on a drawing.
// The files follow the reader's light or dark scheme, use the fonts that the
// reader has, and load nothing.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
)

// pictures are all pictures, each with the name of its file.
var pictures = []struct {
	file string
	draw func() *drawing
}{
	{"who-calls-whom.svg", whoCallsWhom},
	{"rotation-timeline.svg", rotationTimeline},
	{"cached-key.svg", cachedKey},
	{"status.svg", status},
	{"which-signer.svg", whichSigner},
}

func main() {
	out := flag.String("out", "docs", "the folder to write to")
	flag.Parse()
	log.SetFlags(0)
	for _, p := range pictures {
		if err := os.WriteFile(filepath.Join(*out, p.file), p.draw().svg(), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
