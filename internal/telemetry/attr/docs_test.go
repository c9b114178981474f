package attr

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const docsPath = "../../../docs/tracing.md"

// TestDocsListKeysAndNames holds the tables in docs/tracing.md to KeyTable and SpanTable; -update rewrites them.
func TestDocsListKeysAndNames(t *testing.T) {
	var keys, spans strings.Builder
	keys.WriteString("| key | type | meaning |\n|---|---|---|\n")
	for _, k := range KeyTable {
		fmt.Fprintf(&keys, "| `%s` | %s | %s |\n", k.Key, strings.ToLower(k.Type.String()), k.Meaning)
	}
	spans.WriteString("| process | span | meaning |\n|---|---|---|\n")
	for _, s := range SpanTable {
		fmt.Fprintf(&spans, "| %s | `%s` | %s |\n", s.Where, s.Name, s.Meaning)
	}
	b, err := os.ReadFile(docsPath)
	require.NoError(t, err)
	want := string(b)
	for name, table := range map[string]string{"keys": keys.String(), "spans": spans.String()} {
		re := regexp.MustCompile(`(?s)(<!-- ` + name + ` -->\n).*?(<!-- /` + name + ` -->\n)`)
		require.Regexp(t, re, want)
		want = re.ReplaceAllString(want, "${1}"+strings.ReplaceAll(table, "$", "$$")+"${2}")
	}
	if *update {
		require.NoError(t, os.WriteFile(docsPath, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(b), "run with -update")
}

// TestTablesAreWhole finds a constant that its table forgot.
func TestTablesAreWhole(t *testing.T) {
	count := func(file, prefix string) (n int) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, s := range g.Specs {
					if strings.HasPrefix(s.(*ast.ValueSpec).Names[0].Name, prefix) {
						n++
					}
				}
			}
		}
		return n
	}
	assert.Equal(t, count("keys.go", "Key"), len(KeyTable))
	names, keys := map[string]bool{}, map[string]bool{}
	for _, s := range SpanTable {
		names[s.Name] = true
	}
	for _, k := range KeyTable {
		keys[string(k.Key)] = true
	}
	assert.Equal(t, count("names.go", "Span"), len(names))
	assert.Len(t, keys, len(KeyTable), "no key twice")
}

func TestNoKeyForSecrets(t *testing.T) {
	for _, k := range KeyTable {
		assert.Regexp(t, `^kvxfer(\.[a-z_]+)+$`, string(k.Key))
		assert.NotRegexp(t, `ticket|secret|token|password`, string(k.Key))
	}
}

var update = flag.Bool("update", false, "rewrite the tables in docs/tracing.md")
