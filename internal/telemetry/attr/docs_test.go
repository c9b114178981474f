package attr

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
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

// TestCodeEmitsWhatIsListed holds the tables to the code: a listed name or key is used where spans are made, here or in the
// Python SDK, and none is made up there.
func TestCodeEmitsWhatIsListed(t *testing.T) {
	const root = "../../../"
	used := map[string]bool{} // identifiers of this package
	var python strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || rel == "build" || rel == "test" || rel == "bench") {
				return filepath.SkipDir
			}
			return nil
		case strings.HasPrefix(rel, "sdk/python/src/") && strings.HasSuffix(rel, ".py"):
			b, err := os.ReadFile(path)
			python.Write(b)
			return err
		case !strings.HasSuffix(rel, ".go"), strings.HasSuffix(rel, "_test.go"), filepath.Dir(rel) == "internal/telemetry/attr":
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`\battr\.((?:Key|Span)[A-Za-z]+)`).FindAllStringSubmatch(string(b), -1) {
			used[m[1]] = true
		}
		assert.NotRegexp(t, `(?i)tracer(\(\))?\.Start\([a-z.()A-Z]+, "`, string(b), "%s: a span's name is one of this package", rel)
		assert.NotRegexp(t, `attribute\.(Key|String|Int|Int64|Bool)\("kvxfer`, string(b), "%s: a key is one of this package", rel)
		return nil
	}))
	inPython := map[string]bool{}
	for _, m := range regexp.MustCompile(`"(kvxfer(?:\.[a-z_]+)+)"`).FindAllStringSubmatch(python.String(), -1) {
		inPython[m[1]] = true
	}
	listed := map[string]bool{}
	for file, prefix := range map[string]string{"keys.go": "Key", "names.go": "Span"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) || len(spec.Values) != 1 {
				return true
			}
			var text string
			ast.Inspect(spec.Values[0], func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok {
					text = strings.Trim(lit.Value, `"`)
				}
				return true
			})
			if strings.HasSuffix(spec.Names[0].Name, "Table") {
				return true
			}
			listed[text] = true
			assert.True(t, used[spec.Names[0].Name] || inPython[text], "%s (%s) is listed and nothing emits it", spec.Names[0].Name, text)
			return true
		})
	}
	for name := range inPython {
		assert.True(t, listed[name], "the Python SDK emits %s, which is not listed", name)
	}
}
