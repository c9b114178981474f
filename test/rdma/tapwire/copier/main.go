package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/test/rdma/tapwire"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: copier TAP TAP")
		os.Exit(2)
	}
	w, err := tapwire.Open(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "copier:", err)
		os.Exit(1)
	}
	fmt.Println("open")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(do(w, strings.Fields(in.Text())))
	}
	if err := w.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "copier:", err)
		os.Exit(1)
	}
}

func do(w *tapwire.Wire, words []string) string {
	if len(words) == 0 {
		return "no command"
	}
	switch words[0] {
	case "hold":
		w.Hold(nil)
	case "release":
		w.Release()
	case "drop":
		return fmt.Sprint("dropped ", w.DropHeld())
	case "cut":
		w.Cut()
	case "mend":
		w.Mend()
	case "stats":
		b, err := json.Marshal(w.Stats())
		if err != nil {
			return err.Error()
		}
		return string(b)
	case "faults":
		f, err := faults(words[1:])
		if err != nil {
			return err.Error()
		}
		w.SetFaults(f)
	default:
		return "unknown command " + words[0]
	}
	return "done"
}

func faults(words []string) (f tapwire.Faults, err error) {
	if len(words) != 6 {
		return f, fmt.Errorf("faults takes 6 words, not %d", len(words))
	}
	if f.Seed, err = strconv.ParseUint(words[0], 10, 64); err != nil {
		return f, err
	}
	for i, to := range []*time.Duration{&f.Delay, &f.Jitter} {
		if *to, err = time.ParseDuration(words[1+i]); err != nil {
			return f, err
		}
	}
	for i, to := range []*float64{&f.Loss, &f.Duplicate, &f.Reorder} {
		if *to, err = strconv.ParseFloat(words[3+i], 64); err != nil {
			return f, err
		}
	}
	return f, nil
}
