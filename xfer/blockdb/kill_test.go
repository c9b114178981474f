package blockdb

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The child process takes random steps on two caches, says before and after each of them on a pipe what it does,
// and is killed in the midst of it. The parent then opens the database and asks for everything that was ever there.

const childEnv = "KVXFER_BLOCKDB_CHILD"

const (
	killCaches = 2
	killBlocks = 48
)

type childJob struct {
	Dir    string
	Seed   uint64
	NoSync bool
	Blind  bool
	Late   bool
	Vouch  [killCaches][]Vouch
}

// event is one line of a child. Lower case: about to. Upper case: returned.
type event struct {
	Cache  int
	Op     string // g/G grant, c/C commit, f/F free, r/R revoke, e/E evict, s/S write what is late
	Gen    uint64
	Blocks []uint32
}

func killOptions(j *childJob) Options {
	o := testOptions(j.Dir)
	o.trapNoSync, o.trapBlind, o.trapLate = j.NoSync, j.Blind, j.Late
	o.lateBy, o.foldBytes = 300*time.Microsecond, 8<<10 // so that kills meet the writer and the pages
	return o
}

func killSpec(i int) AttachSpec { return spec(fmt.Sprint("c", i), killBlocks) }

func childMain() {
	var j childJob
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &j); err != nil {
		panic(err)
	}
	d, _, err := Open(killOptions(&j))
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	for i := range killCaches {
		c, _, err := d.Attach(killSpec(i), j.Vouch[i])
		if err != nil {
			panic(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			childSteps(c, i, rand.New(rand.NewPCG(j.Seed, uint64(i))))
		}()
	}
	wg.Wait()
}

// childSteps never ends by itself. A line is one write to a pipe, so lines of two goroutines do not mix.
func childSteps(c *Cache, cache int, rng *rand.Rand) {
	say := func(op string, gen uint64, blocks []uint32) {
		line, err := json.Marshal(event{cache, op, gen, blocks})
		if err == nil {
			_, err = os.Stdout.Write(append(line, '\n'))
		}
		if err != nil {
			os.Exit(1) // the parent is gone
		}
	}
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	type held struct {
		id     LeaseID
		gen    uint64
		blocks []uint32
	}
	var leases []held
	for n := rng.Uint64(); ; n++ {
		if rng.IntN(40) == 0 {
			say("s", 0, nil)
			c.db.wmu.Lock()
			must(c.db.flushOnce())
			c.db.wmu.Unlock()
			say("S", 0, nil)
		}
		if len(leases) == 0 || len(leases) < 6 && rng.IntN(3) == 0 {
			var blocks, old []uint32
			for range 1 + rng.IntN(6) {
				b := uint32(rng.IntN(killBlocks))
				r, err := c.State(b)
				must(err)
				if has(blocks, b) || has(old, b) {
					continue
				}
				switch r.State {
				case Free:
					blocks = append(blocks, b)
				case Committed:
					if rng.IntN(3) == 0 {
						old = append(old, b)
					} else {
						blocks = append(blocks, b)
					}
				}
			}
			if len(old) > 0 {
				say("e", 0, old)
				must(c.Evict(old))
				say("E", 0, old)
			}
			if len(blocks) > 0 {
				say("g", 0, blocks)
				id := lid(n)
				gen, err := c.Grant(LeaseRecord{LeaseID: id, Kind: KindWrite, Blocks: blocks})
				must(err)
				say("G", gen, blocks) // about to write bytes
				leases = append(leases, held{id, gen, blocks})
			}
			continue
		}
		i := rng.IntN(len(leases))
		l := leases[i]
		leases = append(leases[:i], leases[i+1:]...)
		switch rng.IntN(6) {
		case 0:
			say("f", l.gen, l.blocks)
			must(c.Free(l.id))
			say("F", l.gen, l.blocks)
		case 1:
			say("r", l.gen, l.blocks)
			must(c.Revoke(l.id))
			say("R", l.gen, l.blocks)
			say("f", l.gen, l.blocks)
			must(c.Free(l.id))
			say("F", l.gen, l.blocks)
		default:
			say("c", l.gen, l.blocks)
			must(c.Commit(l.id, CommitRecord{Bytes: 1}))
			say("C", l.gen, l.blocks)
		}
	}
}

func has(s []uint32, b uint32) bool {
	for _, x := range s {
		if x == b {
			return true
		}
	}
	return false
}

// believed is what the parent knows of one block from the lines it read.
type believed struct {
	may  uint64             // the generation that may be served: its commit was started, nothing took the block since; 0: none
	told bool               // that commit returned and no step out of it was begun
	must bool               // and what was late then has been written since
	by   [killCaches]uint64 // a cache's goroutine has begun to write what is late when this generation was told; 0: none was
	ever []uint64
}

type killRound struct {
	violations, lost, late, served int
	rec                            Recovery
}

// runKilled runs a child, kills it after a random number of lines, opens what it left and compares. know is carried
// from round to round.
func runKilled(t *testing.T, j *childJob, rng *rand.Rand, know *[killCaches][killBlocks]believed) (out killRound) {
	t.Helper()
	job, err := json.Marshal(j)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(job))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stop := 1 + rng.IntN(4000)
	lines := bufio.NewScanner(pipe)
	for n := 0; lines.Scan(); n++ {
		if n == stop {
			require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
		}
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			require.Greater(t, n, stop, "%q", lines.Text()) // the line that the kill cut
			break
		}
		for i := range know {
			for b := range know[i] {
				switch k := &know[i][b]; {
				case e.Op == "s" && k.told:
					k.by[e.Cache] = k.may
				case e.Op == "s":
					k.by[e.Cache] = 0
				case e.Op == "S" && k.told && k.by[e.Cache] == k.may:
					k.must = true
				}
			}
		}
		for _, b := range e.Blocks {
			k := &know[e.Cache][b]
			switch e.Op {
			case "G":
				*k = believed{ever: append(k.ever, e.Gen)}
			case "E":
				*k = believed{ever: k.ever}
			case "c":
				k.may = e.Gen
			case "C":
				k.told = true
			case "g", "e":
				k.told, k.must = false, false
			}
		}
	}
	_ = cmd.Wait()
	require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), stderr.String())

	d, rec, err := Open(killOptions(j))
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	out.rec = rec
	for i := range killCaches {
		var vouch []Vouch
		for b := range know[i] {
			for _, g := range know[i][b].ever {
				vouch = append(vouch, Vouch{uint32(b), g})
			}
		}
		c, served, err := d.Attach(killSpec(i), vouch)
		require.NoError(t, err)
		j.Vouch[i] = nil
		for b := range know[i] {
			k := &know[i][b]
			r, err := c.State(uint32(b))
			require.NoError(t, err)
			require.Equal(t, has(served, uint32(b)), r.State == Committed)
			switch {
			case r.State == Committed && r.Generation != k.may:
				out.violations++
			case r.State != Committed && k.must:
				out.lost++
			case r.State != Committed && k.told:
				out.late++
			}
			*k = believed{ever: k.ever}
			if r.State == Committed {
				out.served++
				k.may, k.told, k.must = r.Generation, true, true
				j.Vouch[i] = append(j.Vouch[i], Vouch{uint32(b), r.Generation})
			}
		}
	}
	return out
}

func runKills(t *testing.T, rounds int, j *childJob) (sum killRound, voided int) {
	rng, _ := seeded(t)
	var know [killCaches][killBlocks]believed
	for n := range rounds {
		if n%6 == 0 { // rounds in a row on one database, and fresh ones
			j.Dir, j.Vouch = t.TempDir(), [killCaches][]Vouch{}
			know = [killCaches][killBlocks]believed{}
		}
		j.Seed = rng.Uint64()
		r := runKilled(t, j, rng, &know)
		sum.violations += r.violations
		sum.lost += r.lost
		sum.late += r.late
		sum.served += r.served
		sum.rec.TornBlocks += r.rec.TornBlocks
		if r.rec.Reason != "" {
			voided++
		}
	}
	t.Logf("%d rounds: %d blocks served, %d torn blocks freed, %d wrongly served, %d commits lost and %d that were late, %d databases void",
		rounds, sum.served, sum.rec.TornBlocks, sum.violations, sum.lost, sum.late, voided)
	return sum, voided
}

// TestKillServesNothingTorn is the promise: whenever the process dies, no block is served whose Grant or Evict had
// returned, unless the commit of that lease was begun; and every one is whose commit was in the log. A commit that returned
// just before may be lost.
func TestKillServesNothingTorn(t *testing.T) {
	sum, voided := runKills(t, 24, &childJob{})
	assert.Zero(t, sum.violations, "blocks served torn")
	assert.Zero(t, sum.lost, "commits that had been written and were lost")
	assert.Zero(t, voided)
	assert.NotZero(t, sum.served)
	assert.NotZero(t, sum.rec.TornBlocks)
}

// TestKillFindsTheTrap shows that the test above can fail: with commits that stay in Pebble's buffer it must, and where a
// step out of COMMITTED is as late as one into it.
func TestKillFindsTheTrap(t *testing.T) {
	for name, j := range map[string]*childJob{"buffered": {NoSync: true, Blind: true}, "late": {Late: true}} {
		t.Run(name, func(t *testing.T) {
			sum, _ := runKills(t, 6, j)
			assert.NotZero(t, sum.violations, "the seeded defect was not found")
		})
	}
}

// TestWitnessFindsALostSuffix: the same defect with the witness in place serves nothing instead.
func TestWitnessFindsALostSuffix(t *testing.T) {
	sum, voided := runKills(t, 6, &childJob{NoSync: true})
	assert.Zero(t, sum.violations)
	assert.NotZero(t, voided)
}
