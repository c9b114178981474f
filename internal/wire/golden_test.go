package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "add golden files of new cases, and their sums to "+goldenSums+"; a file that is listed there stays as it is")

const (
	goldenDir  = "testdata/v1"
	goldenSums = "testdata/v1.sha256"
)

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

// readSums reads the list, in the format of sha256sum, of the golden files that must not change any more.
func readSums(t *testing.T) map[string]string {
	raw, err := os.ReadFile(goldenSums)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		require.True(t, ok && len(sum) == 2*sha256.Size, "%s: %q", goldenSums, line)
		require.Empty(t, sums[name], "%s has %s twice", goldenSums, name)
		sums[name] = sum
	}
	return sums
}

// addSum appends to the list. It never changes what stands there.
func addSum(t *testing.T, name string, content []byte) {
	f, err := os.OpenFile(goldenSums, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	require.NoError(t, err)
	_, err = fmt.Fprintf(f, "%x  %s\n", sha256.Sum256(content), name)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// TestGoldenFilesNeverChange holds what -update and careful hands could still break: a golden file that was edited
// together with the code, or taken away. New bytes of a kind need a new case under a new name; the old one stays, since
// daemons and clients that send it are still there. -update adds the new one's sum. A sum may leave the list only while
// no release had its file.
func TestGoldenFilesNeverChange(t *testing.T) {
	sums := readSums(t)
	for name, want := range sums {
		raw, err := os.ReadFile(filepath.Join(goldenDir, name))
		if assert.NoError(t, err, "a golden file was taken away") {
			assert.Equal(t, want, fmt.Sprintf("%x", sha256.Sum256(raw)), "%s has changed: add a new case beside it instead", name)
		}
	}
	have, err := os.ReadDir(goldenDir)
	require.NoError(t, err)
	for _, f := range have {
		assert.Contains(t, sums, f.Name(), "%s is not listed in %s: go test ./internal/wire -run TestGoldenFrames -update lists new cases", f.Name(), goldenSums)
	}
}

func TestGoldenFrames(t *testing.T) {
	kinds := map[Kind]bool{}
	files := map[string]bool{}
	sums := readSums(t)
	for _, c := range goldenCases() {
		path := filepath.Join(goldenDir, c.name+".hex")
		require.False(t, files[path], "%s twice", path)
		files[path], kinds[c.frame.Kind] = true, true
		raw := Append(nil, c.frame)
		if *update && sums[c.name+".hex"] == "" {
			require.NoError(t, os.MkdirAll(goldenDir, 0o755))
			require.NoError(t, os.WriteFile(path, []byte(hexLines(raw)), 0o644))
			addSum(t, c.name+".hex", []byte(hexLines(raw)))
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
