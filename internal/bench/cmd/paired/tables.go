package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// tables are results for a document, in Markdown.
type tables []*table

type table struct {
	title   string
	columns []string
	rows    []row
}

// A row has its cells by column.
type row struct {
	name  string
	cells map[string]string
}

type cell struct{ column, text string }

// add adds a row to the table of that title, and the columns that it lacks.
func (t *tables) add(title, name string, cells ...cell) {
	i := slices.IndexFunc(*t, func(table *table) bool { return table.title == title })
	if i < 0 {
		i = len(*t)
		*t = append(*t, &table{title: title})
	}
	into := (*t)[i]
	r := row{name, make(map[string]string)}
	for _, c := range cells {
		if !slices.Contains(into.columns, c.column) {
			into.columns = append(into.columns, c.column)
		}
		r.cells[c.column] = c.text
	}
	into.rows = append(into.rows, r)
}

func (t *tables) print(w io.Writer) {
	for _, table := range *t {
		fmt.Fprintf(w, "\n%s:\n\n| | %s |\n|%s\n", table.title, strings.Join(table.columns, " | "), strings.Repeat("---|", len(table.columns)+1))
		for _, row := range table.rows {
			fmt.Fprintf(w, "| %s |", row.name)
			for _, column := range table.columns {
				fmt.Fprintf(w, " %s |", row.cells[column])
			}
			fmt.Fprintln(w)
		}
	}
}

// short writes d with three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for unit*1000 <= d {
		unit *= 10
	}
	return d.Round(unit).String()
}
