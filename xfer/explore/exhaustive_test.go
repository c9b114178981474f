package explore_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/xfer/explore"
)

// How far a world is explored: the race detector, which has no goroutine to watch here and makes it ten times slower,
// gets the small ones.
const (
	always = iota
	withoutRace
	deep // KVXFER_EXPLORE_DEEP
)

const (
	write = explore.SawCommitted | explore.SawFreed | explore.SawLayer | explore.SawDone | explore.SawHeld | explore.SawAbort | explore.SawExpired
	read  = explore.SawFreed | explore.SawDone | explore.SawHeld | explore.SawAbort | explore.SawExpired | explore.SawValidated
)

// TestExhaustive visits every state of small worlds. The numbers of states are what was counted when the line was
// written: fewer mean that the model has lost something.
func TestExhaustive(t *testing.T) {
	for _, x := range []struct {
		name   string
		cfg    explore.Config
		when   int
		states int
		marks  explore.Marks
	}{
		{"one lease, a fault", explore.OneLease().With(1, 0), always, 45199, write | explore.SawQuarantined | explore.SawServed},
		{"one lease, weak fabric, a fault", explore.OneLease().Weak().With(1, 0), always, 53100, write | explore.SawQuarantined | explore.SawServed},
		{"one lease, weak fabric, a choice", explore.OneLease().Weak().With(0, 1), always, 12408, write | explore.SawReused},
		{"one lease, layer by layer, a fault", explore.OneLease().ByLayer().With(1, 0), withoutRace, 117910, write | explore.SawServed},
		{"one lease, short transfer, a fault", explore.OneLease().Short().With(1, 0), withoutRace, 45223, write | explore.SawServed},
		{"one lease, weak fabric, a fault and a choice", explore.OneLease().Weak().With(1, 1), withoutRace, 221892, write | explore.SawServed | explore.SawReused},
		{"one lease, two faults", explore.OneLease().With(2, 0), deep, 321908, write | explore.SawQuarantined | explore.SawServed},
		{"one lease, weak fabric, two faults", explore.OneLease().Weak().With(2, 0), withoutRace, 378040, write | explore.SawQuarantined | explore.SawServed},
		{"one lease, weak fabric, two faults and a choice", explore.OneLease().Weak().With(2, 1), deep, 1495238, write | explore.SawReused},
		{"one lease, weak fabric, three faults", explore.OneLease().Weak().With(3, 0), deep, 1331188, write | explore.SawServed},
		{"ticket presented twice", explore.Presented().OnePiece().With(0, 1), always, 69824, write | explore.SawRefused},
		{"ticket presented twice, a fault", explore.Presented().OnePiece().With(1, 0), withoutRace, 226804, write | explore.SawRefused | explore.SawServed},
		{"ticket presented twice, two pieces", explore.Presented().With(0, 0), withoutRace, 126119, write | explore.SawRefused},
		{"ticket presented twice, two faults", explore.Presented().OnePiece().With(2, 0), deep, 1501134, write | explore.SawRefused},
		{"second lease on the block", explore.Retry().OnePiece().With(0, 0), withoutRace, 168407, write},
		{"second lease on the block, weak fabric", explore.Retry().OnePiece().Weak().With(0, 0), withoutRace, 204073, write},
		{"second lease on the block, owner restarts", explore.Retry().OnePiece().Only(explore.CrashOwner).With(1, 0), deep, 1113591, write | explore.SawServed},
		{"reading, a fault and a choice", explore.Reading().With(1, 1), withoutRace, 155393, read | explore.SawQuarantined},
		{"reading ungated, a fault", explore.Reading().Weak().With(1, 0), always, 19857, read | explore.SawQuarantined},
		{"reading ungated, a fault and a choice", explore.Reading().Weak().With(1, 1), withoutRace, 92826, read | explore.SawQuarantined},
		{"reading ungated, two faults and a choice", explore.Reading().Weak().With(2, 1), deep, 606248, read | explore.SawQuarantined},
		{"two readers", explore.TwoReaders().OnePiece().With(0, 0), withoutRace, 104037, read},
		{"two readers ungated", explore.TwoReaders().OnePiece().Weak().With(0, 0), always, 61299, read},
		{"two readers ungated, a fault", explore.TwoReaders().OnePiece().Weak().With(1, 0), deep, 1365795, read},
	} {
		if x.when == deep && os.Getenv("KVXFER_EXPLORE_DEEP") == "" || x.when == withoutRace && race {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			begin := time.Now()
			r := explore.Exhaust(&x.cfg, 0)
			if r.Bad != nil {
				require.NoError(t, r.Bad, explore.Format(&x.cfg, explore.Shrink(&x.cfg, r.Trace, r.Bad.Rule)))
			}
			t.Logf("%d states, %d transitions, %d rests, longest run %d events, %s", r.States, r.Transitions, r.Rests, r.Longest, time.Since(begin).Round(time.Millisecond))
			assert.GreaterOrEqual(t, r.States, x.states, "the model explores less than it did")
			assert.Equal(t, x.marks, r.Marks&x.marks, "something never happened")
		})
	}
}
