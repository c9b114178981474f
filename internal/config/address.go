package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// address is one as it was written.
type address struct {
	host string // an IP literal, IPv6 without brackets; a name; "": every address
	port int
}

// parseAddress reads host, host:port, [v6], [v6]:port and :port. It does not ask what an interface or a name stands for.
func parseAddress(s string, defaultPort int) (address, error) {
	wrong := func(why string) (address, error) {
		return address{}, fmt.Errorf("%q: %s; allowed host[:port], [v6][:port] or interface[:port] with port 0..65535", clip(s), why)
	}
	if ip, err := netip.ParseAddr(s); err == nil {
		if !goodZone(ip) { // fe80::1%eth0:80
			return wrong("an IPv6 address with a port needs brackets")
		}
		return address{host: ip.String(), port: defaultPort}, nil
	}
	host, port := s, ""
	if rest, ok := strings.CutPrefix(s, "["); ok {
		inner, tail, closed := strings.Cut(rest, "]")
		ip, err := netip.ParseAddr(inner)
		if !closed || err != nil || !ip.Is6() || !goodZone(ip) {
			return wrong("no IPv6 address in brackets")
		}
		if tail != "" && tail[0] != ':' {
			return wrong("only a port may follow the brackets")
		}
		host, port = ip.String(), tail
	} else if i := strings.LastIndexByte(s, ':'); i >= 0 {
		host, port = s[:i], s[i:]
	}
	a := address{host: host, port: defaultPort}
	if port != "" {
		n, err := strconv.ParseUint(port[1:], 10, 16)
		if err != nil {
			return wrong("the port is no number in range")
		}
		a.port = int(n)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Is6() && !strings.HasPrefix(s, "[") {
			return wrong("an IPv6 address with a port needs brackets")
		}
		a.host = ip.String()
		return a, nil
	}
	switch {
	case host == "" && port == "":
		return wrong("it is empty")
	case host == "":
	case len(host) > 253 || strings.ContainsFunc(host, badInName):
		return wrong("that is no name of a host or an interface")
	case strings.Trim(host, "0123456789.") == "":
		return wrong("that is no IPv4 address")
	}
	return a, nil
}

// goodZone refuses zones that no interface has, and that would make the address ambiguous.
func goodZone(ip netip.Addr) bool { return !strings.ContainsFunc(ip.Zone(), badInName) }

func badInName(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/[]%:,\"\\", r) }

func unspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// errNoInterface says that there is no interface of that name.
var errNoInterface = errors.New("no such interface")

// Network answers what names stand for.
type Network struct {
	// Interface returns an interface's addresses and whether it is a loop-back; an error for a name that is none.
	Interface func(name string) (addrs []netip.Addr, loopback bool, err error)
	// Interfaces returns all names, for errors.
	Interfaces func() []string
	// Lookup asks the resolver.
	Lookup func(name string) ([]netip.Addr, error)
}

// resolve turns the host of an address into an IP address; "" stays. A name is an interface first, then the resolver's,
// which asked tells.
func (n Network) resolve(host string) (ip string, asked bool, err error) {
	if host == "" {
		return "", false, nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return host, false, nil
	}
	addrs, loopback, err := n.Interface(host)
	if err == nil {
		ip, ok := choose(addrs, loopback, host)
		if !ok {
			return "", false, fmt.Errorf("interface %q has no address, allowed one that has", host)
		}
		return ip.String(), false, nil
	}
	if !errors.Is(err, errNoInterface) {
		return "", false, fmt.Errorf("interfaces cannot be read, allowed is an address: %w", err)
	}
	addrs, err = n.Lookup(host)
	best, ok := choose(addrs, false, "")
	if err != nil || !ok {
		return "", false, fmt.Errorf("%q: allowed are an address, an interface (there are %s) or a name that the resolver knows",
			clip(host), strings.Join(n.Interfaces(), ", "))
	}
	return best.String(), true, nil
}

// choose picks one address: global IPv4, then global IPv6, then link-local (IPv6 with the interface as zone), then
// loop-back, which comes first on a loop-back interface. Among equals the smallest wins, so that the choice does not
// depend on the order.
func choose(addrs []netip.Addr, loopback bool, zone string) (netip.Addr, bool) {
	rank := func(ip netip.Addr) int {
		r := 2
		switch {
		case ip.IsUnspecified() || ip.IsMulticast():
			return -1
		case ip.IsLoopback():
			r = 6
			if loopback {
				r = 0
			}
		case ip.IsLinkLocalUnicast():
			r = 4
		}
		if ip.Is6() {
			r++
		}
		return r
	}
	best, bestRank := netip.Addr{}, -1
	for _, ip := range addrs {
		ip = ip.Unmap()
		r := rank(ip)
		if r < 0 || bestRank >= 0 && (r > bestRank || r == bestRank && ip.Compare(best) >= 0) {
			continue
		}
		best, bestRank = ip, r
	}
	if bestRank >= 0 && best.Is6() && best.IsLinkLocalUnicast() && best.Zone() == "" {
		best = best.WithZone(zone)
	}
	return best, bestRank >= 0
}

// lookupTimeout bounds what a dead resolver costs at start.
const lookupTimeout = 5 * time.Second

func hostNetwork() Network {
	return Network{
		Interface: func(name string) ([]netip.Addr, bool, error) {
			all, err := net.Interfaces()
			if err != nil {
				return nil, false, err
			}
			i := slices.IndexFunc(all, func(i net.Interface) bool { return i.Name == name })
			if i < 0 {
				return nil, false, errNoInterface
			}
			nets, err := all[i].Addrs()
			if err != nil {
				return nil, false, err
			}
			var out []netip.Addr
			for _, a := range nets {
				if p, err := netip.ParsePrefix(a.String()); err == nil {
					out = append(out, p.Addr())
				}
			}
			return out, all[i].Flags&net.FlagLoopback != 0, nil
		},
		Interfaces: func() []string {
			all, _ := net.Interfaces() // the list is a help in an error that is told anyway
			var out []string
			for _, i := range all {
				out = append(out, i.Name)
			}
			return out
		},
		Lookup: func(name string) ([]netip.Addr, error) {
			ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
			defer cancel()
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
	}
}
