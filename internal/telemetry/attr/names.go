package attr

// Scope is the instrumentation scope of the daemon's spans, ClientScope that of client spans.
const (
	Scope       = "github.com/kvxfer/kvxfer"
	ClientScope = "kvxfer.client"
)

// The span names. A name never holds an id or a number: what varies is an attribute.
const (
	SpanClientLease = "kvxfer.lease"
	SpanClientWrite = "kvxfer.write"
	SpanClientRead  = "kvxfer.read"
	SpanClientRaw   = "kvxfer.scatter"

	SpanPush    = "push"
	SpanPull    = "pull"
	SpanScatter = "scatter"
	SpanPlan    = "plan"
	SpanBind    = "bind"
	SpanBatch   = "batch"
	SpanFin     = "fin"

	SpanLease  = "lease"
	SpanPlace  = "place"
	SpanCommit = "commit"
	SpanFence  = "fence"

	// EventLayer is on SpanClientWrite, one a layer, at the time when the layer was handed over.
	EventLayer = "layer"
)

// MaxBatchSpans is how many SpanBatch (on the target SpanPlace) one transfer may have. Above it batches are still
// counted in KeyBatches but get no span: 256 is twice the layers of the deepest models, more is no longer read.
const MaxBatchSpans = 256

// SpanDoc documents one span name.
type SpanDoc struct{ Where, Name, Meaning string }

// SpanTable documents every span name, in the order of docs/tracing.md.
var SpanTable = []SpanDoc{
	{"client", SpanClientLease, "The lease call as its caller sees it."},
	{"client", SpanClientWrite, "The whole push as its caller sees it, to the result; an event `layer` for each layer handed over."},
	{"client", SpanClientRead, "The whole pull as its caller sees it, to the result."},
	{"client", SpanClientRaw, "The whole writev or readv of raw memory as its caller sees it, to the result."},
	{"source daemon", SpanPush, "The transfer on the source, parent of the four below."},
	{"reader's daemon", SpanPull, "A transfer that reads: the same as `push`, seen from the blocks' destination."},
	{"source or reader", SpanScatter, "A transfer of raw memory."},
	{"source daemon", SpanPlan, "Layouts and block pairs become a scatter list."},
	{"source daemon", SpanBind, "The ticket is presented to the target and bound to this transfer."},
	{"source daemon", SpanBatch, "One layer or provider batch: from posting to its completion."},
	{"source daemon", SpanFin, "From FIN, or of a transfer that reads RELEASE, to the answer."},
	{"target daemon", SpanLease, "Blocks are checked, journalled and granted."},
	{"target daemon", SpanBind, "The lease takes this transfer as its one writer."},
	{"target daemon", SpanPlace, "One layer: from its first piece in memory to its last."},
	{"target daemon", SpanCommit, "Counts are checked and the blocks become COMMITTED in the store."},
	{"target daemon", SpanFence, "From the decision to fence until no byte of the lease can land any more."},
}
