package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// noPort is the port of an address that has none.
const noPort = -1

// resolveTimeout bounds the look-up of one host name, in case the name server does not answer.
const resolveTimeout = 5 * time.Second

// address is an IP or a name with a port. The zero value is no address.
type address struct {
	ip   netip.Addr // valid, or name is set
	name string
	port int
}

func (a address) set() bool { return a.ip.IsValid() || a.name != "" }

// unspecified reports an IP that means every address of the host.
func (a address) unspecified() bool { return a.ip.IsValid() && a.ip.WithZone("").IsUnspecified() }

// String is HOST:PORT as the net package has it, without a port HOST alone, "" for no address.
func (a address) String() string {
	host := a.name
	if a.ip.IsValid() {
		host = a.ip.String()
	}
	if !a.set() || a.port == noPort {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(a.port))
}

// overlaps reports that two listeners cannot have both addresses. Go listens on both families for either unspecified IP.
func (a address) overlaps(b address) bool {
	return a.set() && b.set() && a.port == b.port && a.port != 0 && (a.ip == b.ip || a.unspecified() || b.unspecified())
}

// parseAddress reads IP, IP:PORT, [IPV6], [IPV6]:PORT, NAME and NAME:PORT, where a name is a host's or an interface's.
// It looks nothing up.
func parseAddress(s string) (address, error) {
	if strings.HasPrefix(s, "[") {
		inside, rest, ok := strings.Cut(s[1:], "]")
		ip, err := parseIP(inside)
		if !ok || err != nil || !strings.Contains(inside, ":") {
			return address{}, errors.New("no IPv6 address in brackets")
		}
		return withPort(address{ip: ip}, rest)
	}
	if ip, err := parseIP(s); err == nil {
		return address{ip: ip, port: noPort}, nil
	}
	if strings.Count(s, ":") > 1 {
		return address{}, errors.New("an IPv6 address with a port needs brackets, [IP]:PORT")
	}
	host, rest := s, ""
	if i := strings.IndexByte(s, ':'); i >= 0 {
		host, rest = s[:i], s[i:]
	}
	if ip, err := parseIP(host); err == nil {
		return withPort(address{ip: ip}, rest)
	}
	if !isHostName(host) {
		return address{}, errors.New("neither an IP, an interface nor a host name")
	}
	return withPort(address{name: host}, rest)
}

// parseIP refuses zones that could not be an interface's name; an IPv4 address in IPv6 becomes the former.
func parseIP(s string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return ip, err
	}
	if zone := ip.Zone(); zone != "" && (!isHostName(zone) || ip.Is4In6()) {
		return netip.Addr{}, errors.New("no zone")
	}
	return ip.Unmap(), nil
}

// withPort reads ":PORT" or nothing.
func withPort(a address, s string) (address, error) {
	if s == "" {
		a.port = noPort
		return a, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, ":"), 10, 16)
	if err != nil || s[0] != ':' || len(s) > len(":65535") {
		return address{}, errors.New("no port of 0 to 65535")
	}
	a.port = int(n)
	return a, nil
}

// isHostName accepts what host and interface names are made of.
func isHostName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_' || c == '-' || c == '.' && i > 0) {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 253
}

// network is what address look-ups ask of the machine.
type network struct {
	// interfaceAddrs returns an interface's addresses in the kernel's order; found is false where there is no such one.
	interfaceAddrs func(name string) (addrs []netip.Addr, found bool, err error)
	// lookupHost returns a host's addresses, best first.
	lookupHost func(ctx context.Context, name string) ([]netip.Addr, error)
}

func thisNetwork() network {
	return network{interfaceAddrs: interfaceAddrs, lookupHost: func(ctx context.Context, name string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	}}
}

func interfaceAddrs(name string) ([]netip.Addr, bool, error) {
	// An error of InterfaceByName means in practice that there is none; a name that is none's may still be a host's.
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, false, nil
	}
	list, err := ifi.Addrs()
	if err != nil {
		return nil, true, err
	}
	var out []netip.Addr
	for _, a := range list {
		if p, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(p.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, true, nil
}

// listenAddress resolves an address to listen on; without a port it gets def.
func (n network) listenAddress(s string, def int) (address, error) {
	a, err := parseAddress(s)
	if err != nil {
		return address{}, err
	}
	if a.port == noPort {
		a.port = def
	}
	if a.name != "" {
		if a.ip, err = n.resolve(a.name); err != nil {
			return address{}, err
		}
		a.name = ""
	}
	return a, n.checkIP(a.ip)
}

// dialAddress resolves an address that others dial; without a port it keeps none. A host's name stays one, since peers
// may see another address behind it, but it must resolve here too: that is how a mistyped interface is noticed.
func (n network) dialAddress(s string) (address, error) {
	a, err := parseAddress(s)
	if err != nil {
		return address{}, err
	}
	if a.port == 0 {
		return address{}, errors.New("port 0 cannot be dialled")
	}
	ip := a.ip
	if a.name != "" {
		if ip, err = n.resolve(a.name); err != nil {
			return address{}, err
		}
		if _, found, _ := n.interfaceAddrs(a.name); found {
			a.ip, a.name = ip, ""
		}
	}
	if ip.WithZone("").IsUnspecified() {
		return address{}, errors.New("an unspecified IP cannot be dialled")
	}
	return a, n.checkIP(ip)
}

// checkIP refuses what a TCP port cannot have. A zone is an interface's name or its number.
func (n network) checkIP(ip netip.Addr) error {
	switch zone := ip.Zone(); {
	case ip.WithZone("").IsMulticast():
		return errors.New("a multicast IP has no TCP port")
	case zone == "" && ip.Is6() && ip.IsLinkLocalUnicast():
		return errors.New("a link-local IPv6 address needs its interface, [IP%INTERFACE]")
	case zone != "" && !ip.WithZone("").IsLinkLocalUnicast():
		return errors.New("only a link-local IPv6 address has a zone")
	case zone != "":
		if _, err := strconv.ParseUint(zone, 10, 31); err == nil {
			return nil
		}
		if _, found, _ := n.interfaceAddrs(zone); !found {
			return fmt.Errorf("this host has no interface %q", zone)
		}
	}
	return nil
}

// resolve finds the address of an interface or, where no interface has the name, of a host.
func (n network) resolve(name string) (netip.Addr, error) {
	addrs, found, err := n.interfaceAddrs(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface %q: %w", name, err)
	}
	if found {
		return pick(name, addrs)
	}
	// A last label of digits is a mistyped IPv4 address; a resolver might take it for one of another notation.
	if last := name[strings.LastIndexByte(name, '.')+1:]; last != "" && strings.Trim(last, "0123456789") == "" {
		return netip.Addr{}, errors.New("neither an IP, an interface nor a host name")
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	addrs, err = n.lookupHost(ctx, name)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no address")
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is no interface of this host, and no host of that name was found: %w", name, err)
	}
	for _, ip := range addrs { // as net.Listen does it, so that localhost is 127.0.0.1
		if ip = ip.Unmap(); ip.Is4() {
			return ip, nil
		}
	}
	return addrs[0], nil
}

// pick chooses an interface's address: a global IPv4, then a global IPv6, then a link-local IPv6 with its zone; of
// several the kernel's first. Loop-back addresses count as global, so that "lo" works. IPv4 link-local ones are left
// out: they are what a host gives itself when nobody gave it an address.
func pick(iface string, addrs []netip.Addr) (netip.Addr, error) {
	best, rank := netip.Addr{}, 4
	for _, ip := range addrs {
		ip = ip.Unmap().WithZone("")
		r := 4
		switch global := ip.IsGlobalUnicast() || ip.IsLoopback(); {
		case global && ip.Is4():
			r = 1
		case global:
			r = 2
		case ip.Is6() && ip.IsLinkLocalUnicast():
			r, ip = 3, ip.WithZone(iface)
		}
		if r < rank {
			best, rank = ip, r
		}
	}
	if rank == 4 {
		return netip.Addr{}, fmt.Errorf("interface %q has no usable address", iface)
	}
	return best, nil
}
