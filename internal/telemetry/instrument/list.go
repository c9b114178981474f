package instrument

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
)

// Kind is what sort of instrument a metric is.
type Kind uint8

const (
	Counter   Kind = iota + 1 // only grows while the daemon lives
	Gauge                     // as it is now
	Histogram                 // how often which duration
)

// String gives the kind as Prometheus names it.
func (k Kind) String() string { return [...]string{"", "counter", "gauge", "histogram"}[k] }

// The names.
const (
	Payload        = "kvxfer.payload"
	Operations     = "kvxfer.operations"
	Transfers      = "kvxfer.transfers"
	Running        = "kvxfer.transfers.running"
	TransferTime   = "kvxfer.transfer.duration"
	FirstByte      = "kvxfer.transfer.first_byte"
	Leases         = "kvxfer.leases"
	LeasesEnded    = "kvxfer.leases.ended"
	LeaseTime      = "kvxfer.lease.duration"
	FenceTime      = "kvxfer.fence.duration"
	FencesPending  = "kvxfer.fences.pending"
	FenceAge       = "kvxfer.fences.oldest.age"
	HeldBlocks     = "kvxfer.held.blocks"
	HeldMemory     = "kvxfer.held.memory"
	Quarantined    = "kvxfer.quarantined.memory"
	Clients        = "kvxfer.clients"
	Caches         = "kvxfer.caches"
	Links          = "kvxfer.links"
	Errors         = "kvxfer.errors"
	PortActive     = "kvxfer.rdma.port.active"
	PortTraffic    = "kvxfer.rdma.port.traffic"
	PortPackets    = "kvxfer.rdma.port.packets"
	PortEvents     = "kvxfer.rdma.port.events"
	Connected      = "kvxfer.registry.connected"
	HeartbeatAge   = "kvxfer.registry.heartbeat.age"
	ViewAge        = "kvxfer.registry.view.age"
	Nodes          = "kvxfer.registry.nodes"
	StoreCaches    = "kvxfer.store.caches"
	StoreCommitted = "kvxfer.store.committed.blocks"
	StoreLeases    = "kvxfer.store.leases"
	StoreDisk      = "kvxfer.store.disk"
	StoreWrites    = "kvxfer.store.writes"
	StoreWritten   = "kvxfer.store.written"
	StoreRefused   = "kvxfer.store.refused"
	StoreTrouble   = "kvxfer.store.trouble"
	SpansDropped   = "kvxfer.spans.dropped"
	Ready          = "kvxfer.ready"
	Build          = "kvxfer.build.info"
)

// The attribute keys and those of their values that are more than one package's.
const (
	KeyDirection = attribute.Key("direction")
	KeyProvider  = attribute.Key("provider")
	KeyKind      = attribute.Key("kind")
	KeyResult    = attribute.Key("result")
	KeyOutcome   = attribute.Key("outcome")
	KeyState     = attribute.Key("state")
	KeyWhere     = attribute.Key("where")
	KeyCode      = attribute.Key("code")
	KeyReason    = attribute.Key("reason")
	KeyDevice    = attribute.Key("device")
	KeyPort      = attribute.Key("port")
	KeyEvent     = attribute.Key("event")
	KeyVersion   = attribute.Key("version")
	KeyGo        = attribute.Key("go_version")

	Done   = "DONE"
	NoLink = "none"
)

// Attribute is one attribute of a metric. Values are all that it can have; of those whose list is elsewhere Text says where.
type Attribute struct {
	Key    attribute.Key
	Values []string
	Text   string
}

// Doc is a row of the list.
type Doc struct {
	Name       string
	Kind       Kind
	Unit       string // UCUM; in braces: what is counted
	Attributes []Attribute
	Meaning    string
	buckets    []float64 // upper bounds of a histogram's buckets
}

// Prometheus is the metric's name on /metrics.
func (d *Doc) Prometheus() string {
	name := strings.ReplaceAll(d.Name, ".", "_")
	switch d.Unit {
	case "By":
		name += "_bytes"
	case "s":
		name += "_seconds"
	}
	if d.Kind == Counter {
		name += "_total"
	}
	return name
}

var (
	provider     = Attribute{KeyProvider, []string{"shm", "verbs", "tcp"}, ""}
	device       = Attribute{KeyDevice, nil, "its name, as `rdma link` has it"}
	port         = Attribute{KeyPort, nil, "its number, from 1"}
	providerNone = Attribute{KeyProvider, []string{"shm", "verbs", "tcp", NoLink}, "`shm`, `verbs`, `tcp`, `none` (it ended before it had a link)"}
	transferKind = Attribute{KeyKind, []string{"push", "pull", "scatter"}, ""}
	leaseKind    = Attribute{KeyKind, []string{"write", "read", "raw_write", "raw_read"}, ""}
	result       = Attribute{KeyResult, nil, "`DONE`, or a name of [errors.md](errors.md)"}
	outcome      = Attribute{KeyOutcome, []string{"done", "failed"}, ""}
)

// Upper bounds in seconds. A transfer takes between a call's round trip and its time-out; a fence one system call, where
// nothing is wrong; a lease as long as the request that it is for.
var (
	transferBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	fenceBuckets    = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1}
	leaseBuckets    = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}
)

// PortEventNames are the events of a port, those of rdma/verbs/sysfs.
var PortEventNames = []string{"retransmission", "timeout", "sequence_nak", "out_of_sequence", "duplicate", "receiver_not_ready", "no_receive", "retries_exceeded",
	"refused", "refused_by_peer", "ecn_marked", "cnp_sent", "cnp_handled", "cnp_ignored", "receive_error", "discarded", "link_down"}

// List is every metric, in the order of docs/metrics.md.
var List = []Doc{
	{Payload, Counter, "By", []Attribute{{KeyDirection, []string{"sent", "received"}, ""}, provider},
		"Payload, without headers, counted by operation once it is placed, also of transfers that fail later. What a peer read from here is counted when it has asked whether the memory was held.", nil},
	{Operations, Gauge, "{operation}", []Attribute{{KeyState, []string{"outstanding", "queued"}, ""}, provider},
		"Operations of own transfers: posted to the provider and not completed; waiting for room in its window.", nil},
	{Transfers, Counter, "{transfer}", []Attribute{transferKind, providerNone, result},
		"Transfers that clients of this node began, by how they ended.", nil},
	{Running, Gauge, "{transfer}", nil, "Transfers that clients of this node began and that have not ended.", nil},
	{TransferTime, Histogram, "s", []Attribute{transferKind, providerNone, outcome},
		"From the request to the result.", transferBuckets},
	{FirstByte, Histogram, "s", []Attribute{transferKind, provider},
		"From the request to the first posted byte (`first_ns` of the result): dial, bind and, layer by layer, the caller's own time for the first layer.", transferBuckets},
	{Leases, Gauge, "{lease}", []Attribute{leaseKind, {KeyState, []string{"granted", "bound", "fencing"}, ""}},
		"Leases and advertisements that this node granted: no transfer has it; at least one has; the end is decided and fences run.", nil},
	{LeasesEnded, Counter, "{lease}", []Attribute{leaseKind, result},
		"Leases and advertisements that this node granted, by how they ended. Being revoked by its owner is how an advertisement ends as a rule.", nil},
	{LeaseTime, Histogram, "s", []Attribute{leaseKind}, "From the grant to the end, fences included.", leaseBuckets},
	{FenceTime, Histogram, "s", []Attribute{provider, outcome},
		"From the decision to fence until no byte can land any more.", fenceBuckets},
	{FencesPending, Gauge, "{fence}", nil, "Fences that have begun and not ended, those of regions that are given back included.", nil},
	{FenceAge, Gauge, "s", nil, "How long the oldest of them has taken; 0 without one.", nil},
	{HeldBlocks, Gauge, "{block}", nil, "Blocks that a transfer or a read lease has read (HELD).", nil},
	{HeldMemory, Gauge, "By", nil, "Their bytes.", nil},
	{Quarantined, Gauge, "By", nil, "Memory that is not used again until the daemon exits, because a fence on it failed.", nil},
	{Clients, Gauge, "{client}", nil, "Attached clients.", nil},
	{Caches, Gauge, "{cache}", nil, "Registered caches.", nil},
	{Links, Gauge, "{link}", []Attribute{provider, {KeyDirection, []string{"out", "in"}, ""}}, "Links that are up: dialed by this node; by the peer.", nil},
	{Errors, Counter, "{error}", []Attribute{{KeyWhere, []string{"request", "peer"}, ""}, {KeyCode, nil, "a name of [errors.md](errors.md)"}},
		"Requests answered with an error: of clients; of peers. Transfers and leases that fail later are counted by their results.", nil},
	{PortActive, Gauge, "", []Attribute{device, port}, "1 while a port of an RDMA device is ACTIVE, else 0. Without such devices this and the next three are not there.", nil},
	{PortTraffic, Counter, "By", []Attribute{device, port, {KeyDirection, []string{"sent", "received"}, ""}},
		"What the port has sent and received, headers included and everybody's, since its driver was loaded; where the driver counts it.", nil},
	{PortPackets, Counter, "{packet}", []Attribute{device, port, {KeyDirection, []string{"sent", "received"}, ""}}, "The same in packets.", nil},
	{PortEvents, Counter, "{event}", []Attribute{device, port, {KeyEvent, PortEventNames, ""}},
		"What its counters tell of losses and congestion (see below), everybody's, since its driver was loaded; where the driver counts it.", nil},
	{Connected, Gauge, "", nil, "1 while the view of the registry follows it, else 0.", nil},
	{HeartbeatAge, Gauge, "s", nil, "Since this node's entry was last written to the registry.", nil},
	{ViewAge, Gauge, "s", nil, "Since the view last heard from the registry, whose nodes all write every heartbeat.", nil},
	{Nodes, Gauge, "{node}", nil, "Nodes in the view, this one included.", nil},
	{StoreCaches, Gauge, "{cache}", []Attribute{{KeyState, []string{"attached", "detached"}, ""}},
		"Caches in the block store: of a client that is here; of one that may come back.", nil},
	{StoreCommitted, Gauge, "{block}", nil, "COMMITTED blocks of attached caches.", nil},
	{StoreLeases, Gauge, "{lease}", nil, "Leases that are open in the journal.", nil},
	{StoreDisk, Gauge, "By", nil, "What the block store takes on disk, without its ballast.", nil},
	{StoreWrites, Counter, "{write}", nil, "Writes to the block store's log.", nil},
	{StoreWritten, Counter, "By", nil, "Their bytes.", nil},
	{StoreRefused, Counter, "{step}", nil, "Steps refused with StoreFailed.", nil},
	{StoreTrouble, Gauge, "", []Attribute{{KeyReason, []string{"disk_full", "log_failed", "voided"}, ""}},
		"1 while it holds: grants are refused until there is room; the log is not written any more; the next start serves nothing.", nil},
	{SpansDropped, Counter, "{span}", []Attribute{{KeyReason, []string{"queue_full", "export_failed"}, ""}},
		"Spans that were lost: too many were waiting; the collector or the trace file did not take them.", nil},
	{Ready, Gauge, "", nil, "1 while `/readyz` says so, else 0.", nil},
	{Build, Gauge, "", []Attribute{{KeyVersion, nil, "as `kvxfer version`"}, {KeyGo, nil, "the Go toolchain's"}}, "Always 1.", nil},
}
