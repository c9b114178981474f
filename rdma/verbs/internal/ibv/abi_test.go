//go:build cgo && linux

package ibv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	structLine   = regexp.MustCompile(`^struct (v_\w+) \{$`)
	constantLine = regexp.MustCompile(`^\tV_(\w+) = `)
	functionLine = regexp.MustCompile(`^\t+\w[\w ]*\*?\(\*(\w+)(?:\[\d+\])?\)\(`)
	fieldLine    = regexp.MustCompile(`^\t+[\w ]+[ *](\w+)(?:\[\d+\])?;`)
	noteLine     = regexp.MustCompile(`; *// (\S+)$`)
)

// assertions makes a C program of abi.h that compiles only if every structure, field and constant is the real header's.
func assertions(t *testing.T, header string) (program string, fields, constants int) {
	var b strings.Builder
	b.WriteString("#include <infiniband/verbs.h>\n#include \"abi.h\"\n")
	in := ""
	for n, l := range strings.Split(header, "\n") {
		if m := structLine.FindStringSubmatch(l); m != nil {
			in = m[1]
			real := "ibv_" + strings.TrimPrefix(in, "v_")
			fmt.Fprintf(&b, "_Static_assert(sizeof(struct %s) == sizeof(struct %s), \"size of %s\");\n", in, real, real)
			fmt.Fprintf(&b, "_Static_assert(_Alignof(struct %s) == _Alignof(struct %s), \"alignment of %s\");\n", in, real, real)
			continue
		}
		if m := constantLine.FindStringSubmatch(l); m != nil {
			fmt.Fprintf(&b, "_Static_assert((long long)V_%s == (long long)IBV_%s, \"IBV_%s\");\n", m[1], m[1], m[1])
			constants++
			continue
		}
		if l == "};" {
			in = ""
		}
		if in == "" || !strings.Contains(l, ";") || strings.TrimSpace(l) == "};" {
			continue
		}
		m := functionLine.FindStringSubmatch(l)
		if m == nil {
			m = fieldLine.FindStringSubmatch(l)
		}
		require.NotNil(t, m, "line %d of abi.h is no field that the test understands: %q", n+1, l)
		own, real := m[1], m[1]
		if note := noteLine.FindStringSubmatch(l); note != nil {
			real = note[1]
		}
		if real == "-" {
			continue
		}
		outer := "ibv_" + strings.TrimPrefix(in, "v_")
		fmt.Fprintf(&b, "_Static_assert(offsetof(struct %s, %s) == offsetof(struct %s, %s), \"offset of %s.%s\");\n", in, own, outer, real, outer, real)
		fmt.Fprintf(&b, "_Static_assert(sizeof(((struct %s *)0)->%s) == sizeof(((struct %s *)0)->%s), \"size of %s.%s\");\n", in, own, outer, real, outer, real)
		fields++
	}
	return b.String(), fields, constants
}

func TestABI(t *testing.T) {
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"cc"}
	}
	if _, err := exec.LookPath(cc[0]); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	compile := func(program string) (string, error) {
		path := filepath.Join(t.TempDir(), "abi.c")
		require.NoError(t, os.WriteFile(path, []byte(program), 0o600))
		wd, err := os.Getwd()
		require.NoError(t, err)
		out, err := exec.Command(cc[0], append(cc[1:], "-fsyntax-only", "-I", wd, path)...).CombinedOutput()
		return string(out), err
	}
	if out, err := compile("#include <infiniband/verbs.h>\n"); err != nil {
		t.Skipf("rdma-core's headers are not installed (Debian: libibverbs-dev): %s", out)
	}
	header, err := os.ReadFile("abi.h")
	require.NoError(t, err)
	program, fields, constants := assertions(t, string(header))
	assert.Greater(t, fields, 180)
	assert.Greater(t, constants, 70)
	out, err := compile(program)
	require.NoError(t, err, out)

	// The comparison must be able to fail.
	for _, change := range [][2]string{{"V_WR_BIND_MW = 8", "V_WR_BIND_MW = 9"}, {"\tuint32_t lkey;\n\tuint32_t rkey;", "\tuint32_t rkey;\n\tuint32_t lkey;"},
		{"before_post_send[12]", "before_post_send[11]"}, {"\tuint8_t sgid_index;\n", ""}} {
		changed := strings.Replace(string(header), change[0], change[1], 1)
		require.NotEqual(t, string(header), changed, change[0])
		program, _, _ := assertions(t, changed)
		program = strings.Replace(program, `#include "abi.h"`, changed, 1)
		_, err := compile(program)
		assert.Error(t, err, "a header with %q must be found out", change[1])
	}
}
