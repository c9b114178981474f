package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
)

func main() {
	if len(os.Args) < 3 {
		fail("usage: certmaker DIR AUTHORITY/FOLDER=NODE[,expired][,trusts:AUTHORITY+AUTHORITY]...")
	}
	made := authorities{}
	for _, arg := range os.Args[2:] {
		if err := made.write(os.Args[1], arg); err != nil {
			fail(fmt.Sprintf("%s: %v", arg, err))
		}
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

type authorities map[string]*certtest.Authority

func (as authorities) get(name string) *certtest.Authority {
	if as[name] == nil {
		as[name] = certtest.New(name)
	}
	return as[name]
}

func (as authorities) write(dir, arg string) error {
	if accounts, isAccounts := strings.CutPrefix(arg, "nats:"); isAccounts {
		return writeAccounts(dir, accounts)
	}
	place, what, ok := strings.Cut(arg, "=")
	name, _, ok2 := strings.Cut(place, "/")
	if !ok || !ok2 {
		return fmt.Errorf("want AUTHORITY/FOLDER=NODE")
	}
	words := strings.Split(what, ",")
	leaf := certtest.Leaf{DNS: words[:1]}
	var trusts []*certtest.Authority
	for _, w := range words[1:] {
		list, isTrusts := strings.CutPrefix(w, "trusts:")
		switch {
		case w == "expired":
			leaf.NotBefore, leaf.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		case isTrusts:
			for _, t := range strings.Split(list, "+") {
				trusts = append(trusts, as.get(t))
			}
		default:
			return fmt.Errorf("%q is unknown", w)
		}
	}
	folder := filepath.Join(dir, filepath.FromSlash(place))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	_, _, _, err := as.get(name).Write(folder, leaf, trusts...)
	return err
}
