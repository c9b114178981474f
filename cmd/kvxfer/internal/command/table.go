package command

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Table is rows for people: a head, then cells. Its columns are as wide as what is in them.
type Table struct {
	head []string
	rows [][]string
}

// NewTable begins a table with the names of its columns.
func NewTable(head ...string) *Table { return &Table{head: head} }

// Row adds a row: a cell a column, as text. An empty cell is shown as "-".
func (t *Table) Row(cells ...any) {
	row := make([]string, len(t.head))
	for i := range row {
		if row[i] = "-"; i < len(cells) {
			if s := strings.ToValidUTF8(fmt.Sprint(cells[i]), "?"); s != "" {
				row[i] = strings.Map(printable, s)
			}
		}
	}
	t.rows = append(t.rows, row)
}

// printable keeps what another process put into a name from moving the terminal's cursor.
func printable(r rune) rune {
	if r < ' ' || r >= 0x7f && r < 0xa0 {
		return '?'
	}
	return r
}

// String is the table, each line ended.
func (t *Table) String() string {
	wide := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, row := range all {
		for i, s := range row {
			wide[i] = max(wide[i], utf8.RuneCountInString(s))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, s := range row {
			line.WriteString(s)
			line.WriteString(strings.Repeat(" ", wide[i]-utf8.RuneCountInString(s)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// Bytes is a size for people, in powers of 1024.
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), -1
	for f >= 1023.95 && unit < 5 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTPE"[unit])
}

// Millis is a duration for people, from whole milliseconds: 0 is less than one.
func Millis(ms int64) string {
	if ms == 0 {
		return "<1ms"
	}
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return d.String()
}
