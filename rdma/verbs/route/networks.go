package route

import (
	"net"
	"net/netip"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Networks lists the addresses of this network namespace's interfaces that are up, by name, each with the length of its subnet's
// prefix: pick.Options.Networks. An interface without any has an entry too.
func Networks() (map[string][]netip.Prefix, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "networks", err)
	}
	out := make(map[string][]netip.Prefix, len(all))
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue // down, or gone meanwhile
		}
		list := []netip.Prefix{}
		for _, a := range addrs {
			n, is := a.(*net.IPNet)
			if !is {
				continue
			}
			ip, good := netip.AddrFromSlice(n.IP)
			if ones, bits := n.Mask.Size(); good && bits > 0 {
				ip = ip.Unmap()
				list = append(list, netip.PrefixFrom(ip, ones))
			}
		}
		out[i.Name] = list
	}
	return out, nil
}
