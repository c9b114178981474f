package wire

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func sampleTicket() *Ticket {
	return &Ticket{Traceparent: sampleTraceparent, Grants: []TicketGrant{{Node: "decode-0", Epoch: sampleEpoch,
		Addr: "[::1]:7420", Lease: sampleLease, Secret: sampleSecret(), Blocks: 3}}}
}

func sampleRankTicket() *Ticket {
	t := sampleTicket()
	t.Grants[0].Mode = ModeRead
	second := t.Grants[0]
	second.Rank = 1
	t.Grants = append(t.Grants, second, TicketGrant{Node: "decode-0", Epoch: sampleEpoch, Addr: "[::1]:7420", Lease: sampleLease, Secret: sampleSecret(), Raw: true})
	return t
}

func encodeTicket(t testing.TB, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return ticketPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

func TestTicketRoundTrip(t *testing.T) {
	s := sampleTicket().Encode()
	got, err := ParseTicket(s)
	require.NoError(t, err)
	assert.Equal(t, sampleTicket(), got)
	quoted, err := json.Marshal(s)
	require.NoError(t, err)
	assert.Equal(t, `"`+s+`"`, string(quoted), "a ticket needs no escaping in JSON")

	// A later version adds fields; this one reads what it knows.
	got, err = ParseTicket(encodeTicket(t, map[string]any{"grants": sampleTicket().Grants, "new": 1}))
	require.NoError(t, err)
	assert.Equal(t, sampleTicket().Grants, got.Grants)
}

func TestTicketRefusals(t *testing.T) {
	good := sampleTicket().Encode()
	change := func(f func(g *TicketGrant)) string {
		k := sampleTicket()
		f(&k.Grants[0])
		return k.Encode()
	}
	bad := map[string]string{
		"empty":             "",
		"prefix alone":      ticketPrefix,
		"other version":     "kvx2." + good[len(ticketPrefix):],
		"garbage":           "kvx1.!!secret-text!!",
		"standard base64":   "kvx1.++//",
		"padded":            good + "=",
		"not JSON":          ticketPrefix + base64.RawURLEncoding.EncodeToString([]byte("secret-text")),
		"no grant":          encodeTicket(t, map[string]any{"grants": []any{}}),
		"null":              encodeTicket(t, nil),
		"wrong type":        encodeTicket(t, map[string]any{"grants": "secret-text"}),
		"oversized":         good + strings.Repeat("A", MaxTicket),
		"short secret":      change(func(g *TicketGrant) { g.Secret = g.Secret[1:] }),
		"no secret":         change(func(g *TicketGrant) { g.Secret = nil }),
		"lease not hex":     change(func(g *TicketGrant) { g.Lease = strings.Repeat("z", 32) }),
		"lease upper case":  change(func(g *TicketGrant) { g.Lease = strings.ToUpper(g.Lease) }),
		"epoch too short":   change(func(g *TicketGrant) { g.Epoch = g.Epoch[2:] }),
		"no node":           change(func(g *TicketGrant) { g.Node = "" }),
		"no address":        change(func(g *TicketGrant) { g.Addr = "" }),
		"no blocks":         change(func(g *TicketGrant) { g.Blocks = 0 }),
		"second grant void": func() string { k := sampleTicket(); k.Grants = append(k.Grants, TicketGrant{}); return k.Encode() }(),
	}
	for n := range len(good) {
		bad["truncated to "+good[:n]] = good[:n]
	}
	for name, s := range bad {
		got, err := ParseTicket(s)
		require.ErrorIs(t, err, fault.ErrTicketInvalid, name)
		assert.Nil(t, got)
		assert.Equal(t, "ticket", fault.From("", err).Field)
		requireSilent(t, s, err)
	}
}

// requireSilent fails when the error repeats eight characters of the ticket in a row (the prefix aside), or the text
// that is inside it.
func requireSilent(t *testing.T, s string, err error) {
	text := err.Error()
	body := strings.TrimPrefix(s, ticketPrefix)
	for i := 0; i+8 <= len(body); i++ {
		require.NotContains(t, text, body[i:i+8])
	}
	if raw, err := base64.RawURLEncoding.DecodeString(body); err == nil {
		for i := 0; i+8 <= len(raw); i++ {
			require.NotContains(t, text, string(raw[i:i+8]))
		}
	}
}

func TestBodiesKeepTheirSecrets(t *testing.T) {
	// A body that cannot be read is reported without the capability that is in it.
	for _, body := range []string{
		`{"secret":"top-secret-text","lease":1}`,
		`{"secret":"top-secret-text"`,
		`{"ticket":"top-secret-text","cache":"x"}`,
		`{"ticket":top-secret-text}`,
	} {
		for _, v := range []any{&Bind{}, &PushRequest{}, &Hello{}} {
			if err := (&Frame{Kind: KindBind, JSON: []byte(body)}).Decode(v); err != nil {
				assert.NotContains(t, err.Error(), "secret-text")
			}
		}
	}
	b := sampleBind()
	b.Secret = append(b.Secret, "top-secret-text"...)
	assert.NotContains(t, b.Validate().Error(), "secret-text")
}

func FuzzParseTicket(f *testing.F) {
	f.Add(sampleTicket().Encode())
	f.Add(ticketPrefix)
	f.Add(encodeTicket(f, map[string]any{"grants": []any{map[string]any{"node": "n"}}}))
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseTicket(s)
		if err != nil {
			require.ErrorIs(t, err, fault.ErrTicketInvalid)
			require.Less(t, len(err.Error()), 200)
			return
		}
		if again := k.Encode(); len(again) <= MaxTicket { // escaping may lengthen what was not written by String
			got, err := ParseTicket(again)
			require.NoError(t, err)
			require.Equal(t, k, got)
		}
	})
}
