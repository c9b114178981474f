package instrument

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const docsPath = "../../../docs/metrics.md"

var update = flag.Bool("update", false, "rewrite the list in docs/metrics.md")

// text is how the docs show an attribute.
func (a *Attribute) text() string {
	if a.Text != "" {
		return fmt.Sprintf("`%s`: %s", a.Key, a.Text)
	}
	return fmt.Sprintf("`%s`: `%s`", a.Key, strings.Join(a.Values, "`, `"))
}

// TestDocsList holds the list in docs/metrics.md to List; -update rewrites it.
func TestDocsList(t *testing.T) {
	var list strings.Builder
	list.WriteString("| OpenTelemetry | on `/metrics` | kind | unit | attributes | meaning |\n|---|---|---|---|---|---|\n")
	for _, d := range List {
		unit, attributes := "", []string{}
		if d.Unit != "" {
			unit = "`" + d.Unit + "`"
		}
		for _, a := range d.Attributes {
			attributes = append(attributes, a.text())
		}
		fmt.Fprintf(&list, "| `%s` | `%s` | %s | %s | %s | %s |\n", d.Name, d.Prometheus(), d.Kind, unit, strings.Join(attributes, "; "), d.Meaning)
	}
	b, err := os.ReadFile(docsPath)
	require.NoError(t, err)
	re := regexp.MustCompile(`(?s)(<!-- list -->\n).*?(<!-- /list -->\n)`)
	require.Regexp(t, re, string(b))
	want := re.ReplaceAllString(string(b), "${1}"+strings.ReplaceAll(list.String(), "$", "$$")+"${2}")
	if *update {
		require.NoError(t, os.WriteFile(docsPath, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(b), "run with -update")
}

// TestListIsWhole finds a name without a row, and a row that says too little or too much.
func TestListIsWhole(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "list.go", nil, 0)
	require.NoError(t, err)
	var names []string
	for _, decl := range f.Decls {
		if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				for _, v := range s.(*ast.ValueSpec).Values {
					if lit, ok := v.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"kvxfer.`) {
						names = append(names, strings.Trim(lit.Value, `"`))
					}
				}
			}
		}
	}
	rows, shown := []string{}, map[string]bool{}
	for _, d := range List {
		rows = append(rows, d.Name)
		assert.Regexp(t, `^kvxfer(\.[a-z_]+)+$`, d.Name)
		assert.False(t, shown[d.Prometheus()], d.Name)
		shown[d.Prometheus()] = true
		assert.Regexp(t, `^[A-Z1].*\.$`, d.Meaning, d.Name)
		assert.Regexp(t, `^(By|s|\{[a-z]+\}|)$`, d.Unit, d.Name)
		assert.Equal(t, d.Kind == Histogram, d.buckets != nil, d.Name)
		assert.True(t, slices.IsSorted(d.buckets), d.Name)
		for _, a := range d.Attributes {
			assert.NotRegexp(t, `node|peer|cache|model|tenant|client|lease|transfer|epoch|ticket|secret`, string(a.Key), d.Name)
			assert.True(t, a.Values != nil || a.Text != "", d.Name)
		}
	}
	assert.Equal(t, names, rows)
}

func TestNamesThatAreNotListedPanic(t *testing.T) {
	assert.Panics(t, func() { row("kvxfer.none", Counter) })
	assert.Panics(t, func() { row(Payload, Gauge) }, "the kind is part of the row")
}
