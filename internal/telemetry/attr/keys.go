package attr

import "go.opentelemetry.io/otel/attribute"

// The attribute keys of kvxfer's spans and resources. This list is the whole of them: docs/tracing.md is written
// from KeyTable, and no key may be made up at the place of use. Never a ticket, a lease secret or payload.
const (
	KeyTransferID     = attribute.Key("kvxfer.transfer.id")
	KeyLeaseID        = attribute.Key("kvxfer.lease.id")
	KeyCache          = attribute.Key("kvxfer.cache")
	KeyNode           = attribute.Key("kvxfer.node")
	KeyTenant         = attribute.Key("kvxfer.tenant")
	KeyPeer           = attribute.Key("kvxfer.peer")
	KeyProvider       = attribute.Key("kvxfer.provider")
	KeyProviderReason = attribute.Key("kvxfer.provider.reason")
	KeyLayer          = attribute.Key("kvxfer.layer")
	KeyLayers         = attribute.Key("kvxfer.layers")
	KeyBlocks         = attribute.Key("kvxfer.blocks")
	KeyBytes          = attribute.Key("kvxfer.bytes")
	KeyPieces         = attribute.Key("kvxfer.pieces")
	KeyBatches        = attribute.Key("kvxfer.batches")
	KeyRanges         = attribute.Key("kvxfer.ranges")
	KeyResult         = attribute.Key("kvxfer.result")
	KeyMayHaveWritten = attribute.Key("kvxfer.may_have_written")
	KeyEpoch          = attribute.Key("kvxfer.epoch")
	KeyFenceReason    = attribute.Key("kvxfer.fence.reason")
)

// KeyDoc documents one attribute key.
type KeyDoc struct {
	Key     attribute.Key
	Type    attribute.Type
	Meaning string
}

// KeyTable documents every key above, in the order of docs/tracing.md.
var KeyTable = []KeyDoc{
	{KeyTransferID, attribute.STRING, "The transfer, as `kvxfer` shows it; the same on both nodes."},
	{KeyLeaseID, attribute.STRING, "The lease's public id (its ticket and secret are never recorded)."},
	{KeyCache, attribute.STRING, "The cache's name on this node."},
	{KeyNode, attribute.STRING, "On the resource: the node whose daemon exported the span."},
	{KeyTenant, attribute.STRING, "On the instrumentation scope: the tenant whose transfer or client it is."},
	{KeyPeer, attribute.STRING, "The node on the other side."},
	{KeyProvider, attribute.STRING, "What moved the bytes: `shm`, `verbs`, `tcp`."},
	{KeyProviderReason, attribute.STRING, "Why this provider was chosen and not a faster one."},
	{KeyLayer, attribute.INT64, "The model layer, from 0. On `batch` and `place`: the layer, or the first one."},
	{KeyLayers, attribute.INT64, "How many layers the span covers, where it is not one."},
	{KeyBlocks, attribute.INT64, "How many blocks the span covers."},
	{KeyBytes, attribute.INT64, "Payload bytes, without headers."},
	{KeyPieces, attribute.INT64, "How many distinct (layer, block) pieces."},
	{KeyBatches, attribute.INT64, "On `push`: how many provider batches, also those above the cap of `batch` spans."},
	{KeyRanges, attribute.INT64, "On `plan`: scatter-list ranges after neighbours were merged."},
	{KeyResult, attribute.STRING, "`DONE`, or the name of the failure as in docs/errors.md."},
	{KeyMayHaveWritten, attribute.BOOL, "On a failure: whether target bytes may have been changed."},
	{KeyEpoch, attribute.STRING, "The target node's epoch (its incarnation)."},
	{KeyFenceReason, attribute.STRING, "On `fence`: what made it necessary, such as `revoked`, `expired`, `peer_lost`."},
}
