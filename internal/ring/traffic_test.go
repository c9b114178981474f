package ring

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const trafficPosts = 20_000

// nap is what a side does now and then, so that both orders of going to sleep and writing occur.
func nap(rng *rand.Rand) {
	switch rng.IntN(400) {
	case 0:
		time.Sleep(time.Duration(rng.IntN(2500)) * time.Microsecond)
	case 1, 2, 3, 4:
		time.Sleep(time.Microsecond)
	}
}

// post makes number i: every field of it follows from i.
func post(i uint64) wire.Post {
	return wire.Post{Prepared: i * 0x9e3779b97f4a7c15, Cookie: i, TimeoutNanos: ^i}
}

// client posts n and wants every one back, once, whole, and in the order in which the daemon ends them: this one's is ours.
func client(t testing.TB, c *Client, rng *rand.Rand, n uint64) {
	var s Spin
	var sent, seen uint64
	for begin := time.Now(); seen < n; {
		for burst := rng.IntN(int(c.Entries()) + 2); burst > 0 && sent < n && c.Submit(post(sent)); burst-- {
			sent++
		}
		nap(rng)
		if seen < sent && rng.IntN(50) == 0 && !s.Until(c.Ready, nil) {
			c.Sleep(time.Duration(rng.IntN(3)-1) * time.Millisecond)
		}
		for {
			p, ok := c.Next()
			if !ok {
				break
			}
			want := post(seen)
			require.Equal(t, wire.Posted{Cookie: seen, Code: uint32(seen % 7), Flags: uint32(seen % 2), Bytes: want.Prepared, Nanos: want.TimeoutNanos}, p)
			seen++
		}
		require.Less(t, time.Since(begin), patience)
	}
}

// daemon ends posts until it has ended n.
func daemon(d *Daemon, rng *rand.Rand, n uint64) error {
	var s Spin
	posts := make([]wire.Post, 1+rng.IntN(40))
	for done := uint64(0); done < n; {
		k, err := d.Take(posts)
		if err != nil {
			return err
		}
		for _, p := range posts[:k] {
			d.Complete(wire.Posted{Cookie: p.Cookie, Code: uint32(p.Cookie % 7), Flags: uint32(p.Cookie % 2), Bytes: p.Prepared, Nanos: p.TimeoutNanos})
		}
		done += uint64(k)
		nap(rng)
		if k == 0 && done < n && (rng.IntN(4) == 0 || !s.Until(d.Waiting, nil)) {
			d.Sleep(-1)
		}
	}
	return nil
}

func TestRandomTraffic(t *testing.T) {
	rng := testseed.New(t)
	for _, entries := range []uint32{16, 64} {
		c, d := pair(t, entries)
		ended := make(chan error, 1)
		go func(rng *rand.Rand) { ended <- daemon(d, rng, trafficPosts) }(rand.New(rand.NewPCG(rng.Uint64(), 1)))
		client(t, c, rng, trafficPosts)
		require.NoError(t, <-ended)
	}
}

// TestTrafficBetweenProcesses is the same with the daemon's side in a process of its own, whose end the client then sees.
func TestTrafficBetweenProcesses(t *testing.T) {
	const env = "KVXFER_RING_TEST_SEED"
	if seed, err := strconv.ParseUint(os.Getenv(env), 10, 64); err == nil {
		d, err := Open(3, 4, 5, 32)
		require.NoError(t, err)
		require.NoError(t, daemon(d, rand.New(rand.NewPCG(seed, 1)), trafficPosts))
		return // without Close, as a process that dies
	}
	rng := testseed.New(t)
	c, err := New(32)
	require.NoError(t, err)
	defer c.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTrafficBetweenProcesses$")
	cmd.Env = append(os.Environ(), env+"="+strconv.FormatUint(rng.Uint64(), 10))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	for _, fd := range c.FDs() {
		n, err := dup(fd)
		require.NoError(t, err)
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(n), "ring"))
	}
	require.NoError(t, cmd.Start())
	for _, f := range cmd.ExtraFiles {
		require.NoError(t, f.Close())
	}
	c.Handed()
	client(t, c, rng, trafficPosts)
	for begin := time.Now(); !c.Ended(); c.Sleep(-1) {
		require.Less(t, time.Since(begin), patience)
	}
	require.NoError(t, cmd.Wait())
}

func TestNothingIsAllocated(t *testing.T) {
	c, d := pair(t, 16)
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() { ended <- serve(d, stop.Load) }()
	var s Spin
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		if !c.Submit(wire.Post{Cookie: 1}) {
			panic("full")
		}
		for {
			if _, ok := c.Next(); ok {
				return
			}
			if !s.Until(c.Ready, nil) {
				c.Sleep(-1)
			}
		}
	}), "both sides, asleep and awake")
	stop.Store(true)
	d.Ring()
	require.NoError(t, <-ended)
}
