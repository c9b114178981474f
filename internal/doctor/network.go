package doctor

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// patience is how long a check waits for the network.
const patience = 3 * time.Second

// port says whether an address can be listened on or is the running daemon's.
func (s *Subject) port(setting, want, served string) Check {
	l, err := net.Listen("tcp", want)
	if err == nil {
		_ = l.Close()
		return ok("%s is free", want)
	}
	if served != "" && samePort(want, served) {
		return ok("%s is the running daemon's", served)
	}
	return fail("choose another address (--"+setting+"), or end who listens there (ss -ltnp)", "%v", err)
}

// samePort compares ports: the daemon tells what it advertises, which may be another address of the host.
func samePort(a, b string) bool {
	_, p, err := net.SplitHostPort(a)
	_, q, err2 := net.SplitHostPort(b)
	return err == nil && err2 == nil && p == q
}

func (s *Subject) listen() Check {
	if s.Config == nil {
		return unknown()
	}
	served := ""
	if s.Daemon != nil {
		served = s.Daemon.PeerAddr
	}
	return s.port("listen", s.Config.Listen, served)
}

func (s *Subject) http() Check {
	switch {
	case s.Config == nil:
		return unknown()
	case s.Config.HTTP == "":
		return warn("set --http for /healthz, /readyz, /status and /metrics", "off")
	}
	served := ""
	if s.Daemon != nil {
		served = s.Daemon.HTTPAddr
	}
	return s.port("http", s.Config.HTTP, served)
}

// advertise looks at the interface that the peers' address belongs to.
func (s *Subject) advertise() Check {
	if s.Config == nil {
		return unknown()
	}
	addr := s.Config.Advertise
	if s.Daemon != nil && s.Daemon.Node == s.Config.Node {
		addr = s.Daemon.PeerAddr
	}
	ip := net.ParseIP(strings.SplitN(hostOf(addr), "%", 2)[0])
	if ip == nil {
		return ok("%s is a name; peers resolve it", addr)
	}
	all, err := s.Host.Interfaces()
	if err != nil {
		return warn("look at ip address", "the interfaces cannot be listed: %v", err)
	}
	for _, i := range all {
		for _, a := range i.Addrs {
			if net.ParseIP(a).Equal(ip) {
				return s.Host.card(addr, i, ip.IsLoopback())
			}
		}
	}
	return warn("nothing, where something passes connections on to this host; else advertise an address of this host (--advertise)", "%s is no address of this host", addr)
}

func (h *Host) card(addr string, i Interface, loopback bool) Check {
	text := addr + " on " + i.Name + ", MTU " + strconv.Itoa(i.MTU)
	if speed := h.text("/sys/class/net/" + i.Name + "/speed"); speed != "" && speed != "-1" {
		text += ", " + speed + " Mbit/s"
	}
	if n := h.text("/sys/class/net/" + i.Name + "/device/numa_node"); n != "" && n != "-1" {
		text += ", NUMA node " + n
	}
	switch {
	case !i.Up:
		return fail("bring the interface up (ip link set up)", "%s: it is down", text)
	case loopback:
		return warn("for peers on other hosts listen on and advertise another address (--listen, --advertise)", "%s: only this host reaches it", text)
	case i.MTU < 9000:
		return ok("%s; where the network takes jumbo frames a larger MTU saves processor time", text)
	}
	return ok("%s", text)
}

// registry tries whether a server answers; the URLs may hold passwords, so only hosts are told.
func (s *Subject) registry() Check {
	switch {
	case s.Daemon != nil && !s.Daemon.Registry:
		return warn("start its NATS server or correct --nats; transfers go on meanwhile, new nodes are not found", "the running daemon has lost its registry")
	case s.Config == nil:
		return unknown()
	case s.Config.NATS == "" && s.Config.NATSListen == "":
		return ok("embedded, for this node alone")
	case s.Config.NATS == "":
		return ok("embedded, for others at %s", s.Config.NATSListen)
	}
	var bad []string
	good := ""
	for _, text := range strings.Split(s.Config.NATS, ",") {
		u, err := url.Parse(text)
		if err != nil {
			continue // the configuration's own check
		}
		addr := u.Host
		if u.Port() == "" {
			addr = net.JoinHostPort(u.Hostname(), "4222")
		}
		if err := greeted(addr); err != nil {
			bad = append(bad, addr)
		} else if good == "" {
			good = addr
		}
	}
	switch {
	case good == "":
		return fail("start the NATS server, or correct --nats", "no NATS server answers at %s", strings.Join(bad, ", "))
	case len(bad) > 0:
		return warn("start the servers that are missing: the registry outlives the loss of one of three", "%s answers, %s does not", good, strings.Join(bad, ", "))
	}
	return ok("%s answers", good)
}

// greeted waits for the line that a NATS server begins with.
func greeted(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 5)
	if _, err := c.Read(b); err != nil {
		return err
	}
	if string(b) != "INFO " {
		return errNoNATS
	}
	return nil
}

var errNoNATS = errors.New("what answers is no NATS server")
