package kvxfer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// TestReadFromHolder: a read from a holder has two requests, and until the second is sent nothing of the own blocks changes.
func TestReadFromHolder(t *testing.T) {
	d := startFake(t)
	_, cache := d.attach()
	holder := Holder{Node: "other", Epoch: "00112233445566778899aabbccddeeff", Addr: "127.0.0.1:1", Cache: "x", Blocks: 1}
	keys := [][]byte{[]byte("key")}
	_, err := cache.Publish(within(t), []int{3}, keys)
	require.NoError(t, err)
	vouches := func() int { return len(cache.vouched.packed()) / 16 }
	require.Equal(t, 1, vouches())
	neverSent := func(p *Pull, want error) {
		t.Helper()
		_, err := p.Wait(within(t))
		assert.ErrorIs(t, err, want)
		te := asTransferError(t, err)
		assert.True(t, te.Released)
		assert.False(t, te.MayHaveWritten)
		assert.Equal(t, 1, vouches(), "the block is as it was")
		assert.NoError(t, p.WaitReleased(soon(t)))
	}

	d.set(func() { d.silent[wire.KindOpen] = true })
	ended, giveUp := context.WithCancel(t.Context())
	giveUp()
	_, err = cache.ReadFrom(ended, []int{3}, holder, keys)
	assert.ErrorIs(t, err, context.Canceled)
	assert.True(t, asTransferError(t, err).Released)
	assert.Zero(t, d.count(wire.KindOpen))
	cancelled, err := cache.ReadFrom(within(t), []int{3}, holder, keys)
	require.NoError(t, err)
	cancelled.Cancel()
	neverSent(cancelled, ErrCancelled)
	late, err := cache.ReadFrom(soon(t), []int{3}, holder, keys)
	require.NoError(t, err)
	neverSent(late, ErrDeadlineExceeded)
	d.answer(d.got(wire.KindOpen, 1, nil), 0) // too late: its ticket is not used

	d.set(func() {
		d.silent[wire.KindOpen] = false
		d.refuse[wire.KindOpen] = fault.New(fault.NotFound, "open", "evicted")
	})
	gone, err := cache.ReadFrom(within(t), []int{3}, holder, keys)
	require.NoError(t, err)
	neverSent(gone, ErrNotFound)
	d.set(func() {
		delete(d.refuse, wire.KindOpen)
		d.refuse[wire.KindPull] = fault.New(fault.BlocksBusy, "pull", "leased")
	})
	busy, err := cache.ReadFrom(within(t), []int{3}, holder, keys)
	require.NoError(t, err)
	neverSent(busy, ErrBlocksBusy)
	assert.Equal(t, 1, d.count(wire.KindPull))

	// A cancellation while the second request has no answer yet is sent behind it.
	d.set(func() { delete(d.refuse, wire.KindPull); d.silent[wire.KindPull] = true })
	p, err := cache.ReadFrom(within(t), []int{3}, holder, keys)
	require.NoError(t, err)
	f := d.got(wire.KindPull, 2, nil)
	assert.Zero(t, vouches(), "bytes may land from here on")
	p.Cancel()
	assert.Zero(t, d.count(wire.KindPushCancel))
	d.answer(f, 77)
	var cancel wire.PushCancel
	d.got(wire.KindPushCancel, 1, &cancel)
	assert.EqualValues(t, 77, cancel.Transfer)
	d.event(wire.KindEventTransfer, &wire.TransferEvent{Transfer: 77, Released: true, Error: fault.ToWire(fault.New(fault.Cancelled, "pull", "x"))}, nil)
	_, err = p.Wait(within(t))
	assert.ErrorIs(t, err, ErrCancelled)

	// The connection is lost before the answer: nobody knows what lands, until the daemon is gone.
	p, err = cache.ReadFrom(within(t), []int{3}, holder, keys)
	require.NoError(t, err)
	d.got(wire.KindPull, 3, nil)
	d.hangUp()
	_, err = p.Wait(within(t))
	te := asTransferError(t, err)
	assert.Equal(t, "DaemonUnavailable", te.Code)
	assert.False(t, te.Released)
}
