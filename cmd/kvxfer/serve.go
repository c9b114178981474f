package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/gcfloor"
	"github.com/kvxfer/kvxfer/internal/node"
)

// heapFloor is the heap in bytes below which a daemon collects no garbage.
const heapFloor = 32 << 20

// serve runs a daemon until SIGTERM or SIGINT. A second signal ends the draining.
func serve(args []string, stdout, stderr io.Writer) int {
	cfg, err := config.Load(args, os.Environ())
	if errors.Is(err, flag.ErrHelp) {
		config.Usage(stdout)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%v\n\nkvxfer serve --help lists the settings.\n", err)
		return 2
	}
	level := new(slog.LevelVar)
	log := newLogger(cfg, level, stderr)

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	starting := make(chan struct{})
	go func() { // a signal ends the start, too
		select {
		case s := <-signals:
			cancel()
			signals <- s
		case <-starting:
		}
	}()
	gcfloor.Set(heapFloor)
	n, err := node.Start(ctx, *cfg, log, node.WithLogLevel(level))
	close(starting)
	if err != nil {
		log.Error("the node did not start", "error", err)
		return 1
	}

	code := 0
	select {
	case s := <-signals:
		log.Info("signal", "signal", s.String())
	case err := <-n.Failed():
		log.Error("the node cannot go on", "error", err)
		code = 1
	}
	hurry, stop := context.WithCancel(context.Background())
	go func() {
		select {
		case <-signals:
			stop()
		case <-hurry.Done():
		}
	}()
	n.Close(hurry)
	stop()
	return code
}

// newLogger makes the log, whose level may be changed while it is written (kvxfer log-level).
func newLogger(cfg *config.Config, level *slog.LevelVar, w io.Writer) *slog.Logger {
	level.Set(map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}[cfg.LogLevel])
	o := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
