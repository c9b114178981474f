package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// settings are what both sides of a transfer agree on, and where the daemon is.
type settings struct {
	socket, memory string
	layers, piece  int // piece: bytes of a block in one plane
	units          int
	name           string
	bytes          int
}

// unitBytes is the size of a block in all planes.
func (s settings) unitBytes() int { return s.layers * 2 * s.piece }

func (s settings) layout() kvxfer.Layout {
	return kvxfer.Layout{Layers: s.layers, KVHeads: 1, HeadDim: s.piece, DType: "uint8", BlockTokens: 1}
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "latewriter:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("role: none, allowed owner, source, memory")
	}
	var s settings
	f := flag.NewFlagSet("latewriter "+args[0], flag.ContinueOnError)
	f.StringVar(&s.socket, "socket", "", "the daemon's socket")
	f.StringVar(&s.memory, "memory", "", "owner: a memfd that another process holds, for the cache; there is no region then")
	f.IntVar(&s.layers, "layers", 2, "layers of the cache")
	f.IntVar(&s.piece, "piece", 2048, "bytes of a block in one plane")
	f.IntVar(&s.units, "units", 256, "blocks of the cache and units of the region")
	f.StringVar(&s.name, "name", "late", "name of the cache")
	f.IntVar(&s.bytes, "bytes", 0, "memory: its size")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	t := newTalk(in, out)
	if args[0] == "memory" {
		h, err := newHolder(s, t)
		if err != nil {
			return err
		}
		defer h.watched.stop()
		return t.serve(h.handle)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kvxfer.Dial(ctx, s.socket, kvxfer.WithSampling(0), kvxfer.WithTimeout(30*time.Second), kvxfer.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	switch args[0] {
	case "owner":
		o, err := newOwner(ctx, s, client, t)
		if err != nil {
			return err
		}
		defer o.stop()
		return t.serve(o.handle)
	case "source":
		src, err := newSource(ctx, s, client)
		if err != nil {
			return err
		}
		return t.serve(src.handle)
	}
	return fmt.Errorf("role: %q, allowed owner, source, memory", args[0])
}
