package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		name           string
		min, max       int
		lo, hi         int
		required, have []string
		want           int
		code           fault.Code
		text           []string
	}{
		{name: "same", min: 1, max: 1, lo: 1, hi: 1, want: 1},
		{name: "highest common", min: 1, max: 9, lo: 2, hi: 4, want: 4},
		{name: "other side is older", min: 1, max: 2, lo: 1, hi: 4, want: 2},
		{name: "other side is too old", min: 1, max: 2, lo: 3, hi: 4, code: fault.VersionMismatch, text: []string{"1..2", "3..4"}},
		{name: "other side is too new", min: 5, max: 9, lo: 3, hi: 4, code: fault.VersionMismatch, text: []string{"5..9", "3..4"}},
		{name: "no range", lo: 1, hi: 1, code: fault.ProtocolViolation, text: []string{"0..0"}},
		{name: "range upside down", min: 2, max: 1, lo: 1, hi: 1, code: fault.ProtocolViolation, text: []string{"2..1"}},
		{name: "known feature", min: 1, max: 1, lo: 1, hi: 1, required: []string{"a"}, have: []string{"a", "b"}, want: 1},
		{name: "unknown features", min: 1, max: 1, lo: 1, hi: 1, required: []string{"z", "a", "y"}, have: []string{"a"},
			code: fault.FeatureRequired, text: []string{`"y"`, `"z"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &Hello{MinVersion: c.min, MaxVersion: c.max, Required: c.required, Optional: []string{"from_the_future"}}
			v, err := negotiate(h, c.lo, c.hi, c.have)
			assert.Equal(t, c.code, fault.CodeOf(err))
			assert.Equal(t, c.want, v)
			for _, s := range c.text {
				assert.ErrorContains(t, err, s)
			}
			if c.required != nil && err != nil {
				assert.NotContains(t, err.Error(), `"a"`, "a known feature is not named")
			}
		})
	}

	// A hello of a later version: fields that are unknown here do not disturb.
	f := Frame{Kind: KindHello, JSON: []byte(`{"min_version":1,"max_version":7,"optional":["ring"],"tenant":"t","compression":{"x":1}}`)}
	var h Hello
	require.NoError(t, f.Decode(&h))
	v, err := Negotiate(&h)
	require.NoError(t, err)
	assert.Equal(t, MaxVersion, v)

	h.Tenant = "not a name"
	_, err = Negotiate(&h)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "tenant", fault.From("", err).Field)
}

func TestHelloOKNamesWhatBothKnow(t *testing.T) {
	defer func(old []string) { Features = old }(Features)
	Features = []string{"a", "b", "c"}
	assert.Equal(t, Hello{MinVersion: MinVersion, MaxVersion: MaxVersion, Optional: Features}, NewHello())
	assert.Equal(t, Hello{MinVersion: MinVersion, MaxVersion: MaxVersion, Version: 1, Optional: []string{"a", "c"}},
		NewHelloOK(&Hello{Optional: []string{"c", "z", "a"}}, 1))
	assert.Nil(t, NewHelloOK(&Hello{Optional: []string{"z"}}, 1).Optional)
}

func TestNegotiateNamesABoundedList(t *testing.T) {
	h := &Hello{MinVersion: 1, MaxVersion: 1}
	for i := range 5000 {
		h.Required = append(h.Required, fmt.Sprintf("f%04d", i)+strings.Repeat("\x00", 200))
	}
	_, err := Negotiate(h)
	require.ErrorIs(t, err, fault.ErrFeatureRequired)
	assert.ErrorContains(t, err, "f0000")
	assert.ErrorContains(t, err, "4992 more")
	assert.Less(t, len(NewError(1, err).JSON), 16<<10)
}

func FuzzNegotiate(f *testing.F) {
	f.Add([]byte(`{"min_version":1,"max_version":1,"tenant":""}`))
	f.Add([]byte(`{"min_version":1,"max_version":99999999999,"required":["x"],"optional":["y"],"tenant":"t"}`))
	f.Add([]byte(`{"min_version":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		fr := Frame{Kind: KindHello, JSON: raw}
		var h Hello
		if fr.Decode(&h) != nil {
			return
		}
		if v, err := Negotiate(&h); err == nil {
			require.True(t, v >= max(1, h.MinVersion) && v <= h.MaxVersion)
			require.Empty(t, h.Required)
		} else {
			require.NotEqual(t, fault.Internal, fault.CodeOf(err))
			_, err := json.Marshal(fault.ToWire(err))
			require.NoError(t, err)
		}
	})
}
