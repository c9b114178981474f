package benchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// workerName is the hidden command that is a client of a run: `kvxfer bench worker SOCKET`.
const workerName = "worker"

// waiting is a pipe that is waited for as a client's own connections are: in Go's poller. A read that blocks has Go's scheduler
// look around every 20 us for as long, which would count as the client's.
func waiting(f *os.File) io.Reader {
	if syscall.SetNonblock(int(f.Fd()), true) != nil {
		return f
	}
	return os.NewFile(f.Fd(), f.Name())
}

// work does what the lines of stdin ask for, until stdin ends.
func work(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "kvxfer bench worker: a socket is needed; this command is for kvxfer bench")
		return 2
	}
	ctx := context.Background()
	c, err := kvxfer.Dial(ctx, args[0])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	defer c.Close()
	w := &client{client: c}
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	for {
		var q request
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return 0
		} else if err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		r, err := w.do(ctx, q)
		if err != nil {
			r.Error = err.Error()
		}
		if err := out.Encode(r); err != nil {
			return 1 // nobody listens any more
		}
	}
}

// client is the state of a worker: one cache or region, and what its blocks are in.
type client struct {
	client    *kvxfer.Client
	place     place         // what is open; nil: nothing
	cache     *kvxfer.Cache // the same, for transfers
	c         Case
	ids       []uint32
	committed bool // by a transfer into them; they are evicted before the next
	written   *kvxfer.Lease
	read      *kvxfer.ReadLease

	raw rawClient // for prepared
}

// place is a cache or a region.
type place interface{ Memory() []byte }

func (w *client) do(ctx context.Context, q request) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if w.place == nil && q.Do != "open" {
		return r, errors.New("nothing is open")
	}
	switch q.Do {
	case "open":
		return r, w.open(ctx, q)
	case "fill":
		if err := w.clear(ctx); err != nil { // what is COMMITTED is not to be changed
			return r, err
		}
		fill(w.place.Memory(), w.ids, w.c.BlockBytes, q.Seed)
		return r, nil
	case "check":
		return r, check(w.place.Memory(), w.ids, w.c.BlockBytes, q.Seed)
	case "lease":
		return w.lease(ctx, q.Op)
	case "move":
		return w.move(ctx, q.Op, q.Ticket)
	case "wait":
		return r, w.wait(ctx, q.Op)
	case "close":
		cache, raw := w.cache, w.raw
		w.place, w.cache, w.raw, w.committed = nil, nil, rawClient{}, false
		if raw.region != nil {
			return r, raw.region.Deregister(ctx)
		}
		return r, cache.Drop(ctx)
	}
	if w.raw.region == nil {
		return r, fmt.Errorf("nothing is called %q", q.Do)
	}
	return w.raw.do(ctx, q, w.c)
}

func (w *client) open(ctx context.Context, q request) error {
	w.c, w.ids = q.Case, q.Case.ids(q.Side)
	if q.Way == prepared {
		region, err := w.client.AllocateRegion(ctx, fmt.Sprintf("bench-%d", q.Side), q.Case.slots()*q.Case.BlockBytes)
		if err == nil {
			w.raw.region, w.place = region, region
		}
		return err
	}
	cache, err := w.client.AllocateCache(ctx, kvxfer.CacheSpec{Name: fmt.Sprintf("bench-%d", q.Side), Model: "bench",
		Layout: layoutOf(q.Case.BlockBytes), NumBlocks: q.Case.slots()})
	if err != nil {
		return err
	}
	w.cache, w.place = cache, cache
	return nil
}

// layoutOf has a block of exactly so many bytes in one piece of memory: one layer and one plane, as a latent cache has.
func layoutOf(blockBytes int) kvxfer.Layout {
	const widest = 4 << 10 // bytes of a token
	token := min(blockBytes, widest)
	return kvxfer.Layout{Layers: 1, KVHeads: 1, HeadDim: token, DType: "uint8", BlockTokens: blockBytes / token, Order: kvxfer.MLA}
}

// clear gives up what the last transfer brought, so that the blocks can be the target of another.
func (w *client) clear(ctx context.Context) error {
	if !w.committed {
		return nil
	}
	w.committed = false
	return w.cache.Evict(ctx, w.ids)
}

// lease opens the blocks to the peer, for what it will do.
func (w *client) lease(ctx context.Context, op string) (r reply, err error) {
	if err := w.clear(ctx); err != nil {
		return r, err
	}
	if op == "read" {
		if w.read, err = w.cache.LeaseRead(ctx, w.ids, kvxfer.LeaseOptions{TTL: 2 * patience}); err == nil {
			r.Ticket = w.read.Ticket()
		}
		return r, err
	}
	if w.written, err = w.cache.Lease(ctx, w.ids, kvxfer.LeaseOptions{TTL: 2 * patience}); err == nil {
		r.Ticket = w.written.Ticket()
	}
	return r, err
}

// wait ends the lease.
func (w *client) wait(ctx context.Context, op string) error {
	if op == "read" {
		_, err := w.read.Wait(ctx)
		return err
	}
	_, err := w.written.Wait(ctx)
	w.committed = err == nil
	return err
}

// move makes the transfer and times it.
func (w *client) move(ctx context.Context, op, ticket string) (r reply, err error) {
	if err := w.clear(ctx); err != nil {
		return r, err
	}
	var pending interface {
		Wait(context.Context) (kvxfer.TransferResult, error)
	}
	begun := time.Now()
	if op == "read" {
		pending, err = w.cache.Read(ctx, w.ids, ticket)
	} else {
		pending, err = w.cache.Write(ctx, w.ids, ticket)
	}
	held := time.Since(begun)
	if err != nil {
		return r, err
	}
	result, err := pending.Wait(ctx)
	took := time.Since(begun)
	if err != nil {
		return r, err
	}
	w.committed = op == "read"
	if want := uint64(w.c.Bytes()); result.Bytes != want {
		return r, fmt.Errorf("the transfer moved %d bytes of %d", result.Bytes, want)
	}
	return reply{Took: took.Nanoseconds(), Submit: held.Nanoseconds(), Provider: result.Provider}, nil
}
