package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// RDMA are the settings of the provider verbs.
type RDMA struct {
	Devices []string // that it may use: names or patterns, each with :PORT or without; none: all
	Exclude []string // that it may not use, written in the same way
	GID     string   // an address; "": chosen

	TrafficClass int
	ServiceLevel int
	PKey         uint16
	Timeout      int // 4.096 us x 2^Timeout until a packet is sent again
	Retries      int
	Lanes        int // queue pairs a pair of NICs

	NoWindows         bool // memory windows are not used
	NoRelaxedOrdering bool
}

// Chosen says whether the configuration names devices or an address: who does so wants to hear that they cannot be used.
func (r *RDMA) Chosen() bool { return len(r.Devices) > 0 || r.GID != "" }

// LogValue is what a log line shows.
func (r RDMA) LogValue() slog.Value {
	return slog.GroupValue(slog.Any("devices", r.Devices), slog.Any("exclude", r.Exclude), slog.String("gid", r.GID), slog.Int("traffic_class", r.TrafficClass),
		slog.Int("service_level", r.ServiceLevel), slog.String("pkey", pkeyText(r.PKey)), slog.Int("timeout", r.Timeout), slog.Int("retries", r.Retries),
		slog.Int("lanes", r.Lanes), slog.Bool("no_windows", r.NoWindows), slog.Bool("no_relaxed_ordering", r.NoRelaxedOrdering))
}

const (
	fullPKey   = 0xffff
	maxPattern = 64
)

// rdmaSettings are the rows of the provider verbs; docs/rdma.md says when to set which.
func rdmaSettings() []setting {
	return []setting{
		devices("rdma-devices", "RDMA devices that verbs may use", "all", func(c *Config) *[]string { return &c.RDMA.Devices }),
		devices("rdma-exclude", "RDMA devices that verbs may not use, also where rdma-devices names them", "none", func(c *Config) *[]string { return &c.RDMA.Exclude }),
		{name: "rdma-gid", arg: "IP", defText: "chosen", meaning: "only RDMA ports that have this address in their GID table are used, by it", allowed: "an IPv4 or IPv6 address without a zone, or nothing",
			set: func(l *loader, v string) error {
				if v == "" {
					return nil
				}
				ip, err := netip.ParseAddr(v)
				if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
					return errRange
				}
				l.c.RDMA.GID = ip.Unmap().String()
				return nil
			}},
		number("rdma-traffic-class", 0, 0, 255, "traffic class of RDMA packets; of RoCE it is the IP header's TOS byte, DSCP x 4", func(c *Config) *int { return &c.RDMA.TrafficClass }),
		number("rdma-service-level", 0, 0, 15, "service level of RDMA packets; of RoCE the VLAN's priority", func(c *Config) *int { return &c.RDMA.ServiceLevel }),
		{name: "rdma-pkey", arg: "HEX", def: pkeyText(fullPKey), meaning: "partition key, as the port's table has it; bit 15 is full membership", allowed: "0x0001 to 0xffff, written in hexadecimal",
			set: func(l *loader, v string) error {
				n, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(v), "0x"), 16, 16)
				l.c.RDMA.PKey = uint16(n)
				return errIf(err != nil || n == 0)
			}},
		number("rdma-timeout", 16, 1, 31, "time until an RDMA packet is sent again, as a code: 4.096 us x 2^N, so 14 is 67 ms, 16 268 ms, 18 1.07 s, 20 4.3 s, 31 2.4 h; a peer is given up after about rdma-retries + 1 of them", func(c *Config) *int { return &c.RDMA.Timeout }),
		number("rdma-retries", 6, 0, 6, "how often an RDMA packet is sent again", func(c *Config) *int { return &c.RDMA.Retries }),
		number("rdma-lanes", 4, 1, 64, "RDMA queue pairs a pair of NICs", func(c *Config) *int { return &c.RDMA.Lanes }),
		autoOff("rdma-windows", "memory windows, where the device has those of type 2B: a fence then ends one lease alone and not the whole session's queue pairs", func(c *Config) *bool { return &c.RDMA.NoWindows }),
		autoOff("rdma-relaxed-ordering", "relaxed PCIe ordering of payload, where the device takes it", func(c *Config) *bool { return &c.RDMA.NoRelaxedOrdering }),
	}
}

// autoOff is a setting of something that is used where it is there.
func autoOff(name, meaning string, off func(*Config) *bool) setting {
	return setting{name: name, arg: "WORD", def: "auto", meaning: meaning, allowed: "auto, off",
		set: func(l *loader, v string) error {
			*off(&l.c) = v == "off"
			return errIf(v != "auto" && v != "off")
		}}
}

var devicePattern = regexp.MustCompile(`^[][A-Za-z0-9_.*?^-]+$`)

func devices(name, meaning, none string, in func(*Config) *[]string) setting {
	return setting{name: name, arg: "NAMES", defText: none, meaning: meaning, kind: listKind,
		allowed: fmt.Sprintf("names of at most %d of [A-Za-z0-9_.-], with *, ? and [a-z] in them, each with a port of 1 to 255 (mlx5_0:1) or without, several separated by commas, or nothing", maxPattern),
		set: func(l *loader, v string) error {
			for _, s := range list(v) {
				if err := checkDevice(s); err != nil {
					return err
				}
				*in(&l.c) = append(*in(&l.c), s)
			}
			return nil
		}}
}

func checkDevice(s string) error {
	pattern, port, given := strings.Cut(s, ":")
	if len(pattern) > maxPattern || !devicePattern.MatchString(pattern) {
		return fmt.Errorf("%.80q is no device", s)
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return err
	}
	if !given {
		return nil
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 255 || port != strconv.Itoa(n) {
		return errors.New("the port is not one")
	}
	return nil
}

func pkeyText(k uint16) string { return fmt.Sprintf("0x%04x", k) }

// Texts of a Config for New, "" where the default is meant.

func pkeyField(c *Config) string {
	if c.RDMA.PKey == 0 {
		return ""
	}
	return pkeyText(c.RDMA.PKey)
}

func offText(off bool) string {
	if off {
		return "off"
	}
	return ""
}
