package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files; bytes of a released version must not change")

const goldenDir = "testdata/v1"

// hexLines writes 16 bytes a line, so that a change shows where it is.
func hexLines(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i += 16 {
		s.WriteString(hex.EncodeToString(b[i:min(i+16, len(b))]) + "\n")
	}
	return s.String()
}

func readHex(t *testing.T, path string) []byte {
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	b, err := hex.DecodeString(strings.ReplaceAll(string(raw), "\n", ""))
	require.NoError(t, err, path)
	return b
}

func TestGoldenFrames(t *testing.T) {
	kinds := map[Kind]bool{}
	files := map[string]bool{}
	for _, c := range goldenCases() {
		path := filepath.Join(goldenDir, c.name+".hex")
		require.False(t, files[path], "%s twice", path)
		files[path], kinds[c.frame.Kind] = true, true
		raw := Append(nil, c.frame)
		if *update {
			require.NoError(t, os.MkdirAll(goldenDir, 0o755))
			require.NoError(t, os.WriteFile(path, []byte(hexLines(raw)), 0o644))
		}
		t.Run(c.name, func(t *testing.T) {
			old := readHex(t, path)
			r := bytes.NewReader(old)
			f, err := ReadFrame(r, LocalLimits)
			require.NoError(t, err)
			assert.Zero(t, r.Len())
			assert.Equal(t, c.frame, f)
			if c.body != nil {
				got := reflect.New(reflect.TypeOf(c.body).Elem())
				dec := json.NewDecoder(bytes.NewReader(f.JSON))
				dec.DisallowUnknownFields()
				require.NoError(t, dec.Decode(got.Interface()))
				assert.Equal(t, c.body, got.Interface())
				if v, ok := got.Interface().(interface{ Validate() error }); ok {
					assert.NoError(t, v.Validate())
				}
			} else {
				assert.Empty(t, f.JSON)
			}
			assert.Equal(t, hexLines(old), hexLines(raw), "the bytes of version 1 changed: old daemons and clients are still there")
		})
	}
	for k, name := range kindNames {
		assert.True(t, kinds[k], "no golden frame of %s", name)
	}
	have, err := filepath.Glob(filepath.Join(goldenDir, "*"))
	require.NoError(t, err)
	for _, path := range have {
		assert.True(t, files[path], "%s has no case here any more", path)
	}
}

// TestGoldenFramesUseEveryField keeps the golden bodies representative: each field is set in one of them, so its name
// and spelling cannot change unseen.
func TestGoldenFramesUseEveryField(t *testing.T) {
	set := map[string]bool{}
	var visit func(v reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				visit(v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				visit(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if !v.Field(i).IsZero() {
					set[v.Type().String()+"."+v.Type().Field(i).Name] = true
				}
				visit(v.Field(i))
			}
		}
	}
	for _, c := range goldenCases() {
		if c.body != nil {
			visit(reflect.ValueOf(c.body))
		}
	}
	visit(reflect.ValueOf(sampleTicket()))
	visit(reflect.ValueOf(sampleRankTicket()))
	visit(reflect.ValueOf(sampleRows()))
	for _, s := range wireStructs {
		typ := reflect.TypeOf(s.new()).Elem()
		for i := range typ.NumField() {
			name := typ.String() + "." + typ.Field(i).Name
			assert.True(t, set[name], "no golden frame sets %s", name)
		}
	}
}
