package wire

import (
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const page = "../../docs/protocol.md"

func readPage(t *testing.T) string {
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	return string(raw)
}

// sections splits the page at its headings.
func sections(text string) map[string]string {
	out := map[string]string{}
	heading, fenced := "", false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if !fenced && strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
		out[heading] += line
	}
	return out
}

// kindConsts reads the constants of type Kind from kinds.go: reflection does not know constants.
func kindConsts(t *testing.T) map[string]Kind {
	file, err := parser.ParseFile(token.NewFileSet(), "kinds.go", nil, 0)
	require.NoError(t, err)
	out := map[string]Kind{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			typ, ok := v.Type.(*ast.Ident)
			require.True(t, ok && typ.Name == "Kind" && len(v.Values) == 1, "%v: one Kind a line", v.Names)
			n, err := strconv.ParseUint(v.Values[0].(*ast.BasicLit).Value, 0, 8)
			require.NoError(t, err)
			out[v.Names[0].Name] = Kind(n)
		}
	}
	return out
}

func TestPageNamesEveryKind(t *testing.T) {
	text := readPage(t)
	consts := kindConsts(t)
	require.Len(t, kindNames, len(consts), "a kind has no name, or two constants have one number")
	for name, k := range consts {
		require.Contains(t, kindNames, k, "%s has no name", name)
		row := fmt.Sprintf("| `0x%02x` | %s |", uint8(k), k)
		assert.Contains(t, text, row, "%s is missing in %s: want a row that begins with %q", name, page, row)
	}
}

func TestPageNamesEveryField(t *testing.T) {
	all := sections(readPage(t))
	for _, s := range wireStructs {
		typ := reflect.TypeOf(s.new()).Elem()
		for _, heading := range s.section {
			section, ok := all[heading]
			require.True(t, ok, "%s has no section %q, which gives the fields of %s", page, heading, typ)
			var missing []string
			for i := range typ.NumField() {
				if typ.Field(i).Anonymous {
					continue // its fields are listed for themselves
				}
				name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
				require.NotEmpty(t, name, "%s.%s has no JSON name", typ, typ.Field(i).Name)
				if !strings.Contains(section, "`"+name+"`") && !strings.Contains(section, `"`+name+`"`) {
					missing = append(missing, name)
				}
			}
			assert.Empty(t, missing, "fields of %s that section %q of %s does not name", typ, heading, page)
		}
	}
}

// TestWireStructsAreListed finds every struct with JSON tags in this package's sources.
func TestWireStructsAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, s := range wireStructs {
		listed[reflect.TypeOf(s.new()).Elem().Name()] = true
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					if f.Tag != nil && strings.Contains(f.Tag.Value, "json:") {
						assert.True(t, listed[spec.Name.Name], "%s of %s is missing in wireStructs", spec.Name.Name, name)
						break
					}
				}
			}
			return true
		})
	}
}

func TestPageGivesTheLimits(t *testing.T) {
	text := readPage(t)
	for what, n := range map[string]int64{
		"JSON": maxJSON, "array": maxArray, "ticket": MaxTicket, "notification": MaxNotification, "milliseconds": MaxMillis,
		"error text": MaxErrorText, "lines of TRACE_OF": MaxTraceLines, "entries of BLOCKS": maxArray / blockEntrySize,
	} {
		assert.Contains(t, text, strconv.FormatInt(n, 10), "%s: limit of %s", page, what)
	}
}

func TestPageShowsTheGoldenFrames(t *testing.T) {
	text := readPage(t)
	for _, name := range []string{"hello", "lease"} {
		dump := hex.Dump(readHex(t, filepath.Join(goldenDir, name+".hex")))
		assert.Contains(t, text, "```\n"+dump+"```", "%s: hex dump of %s", page, name)
	}
}
