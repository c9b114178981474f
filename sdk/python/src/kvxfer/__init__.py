"""kvxfer moves the KV cache of large language models between nodes, by blocks.

    client = kvxfer.connect()
    layout = kvxfer.Layout(layers=30, kv_heads=3, head_dim=64, dtype="float32", block_tokens=32)
    cache = client.allocate_cache("decode-0", model="smollm2", layout=layout, num_blocks=728)

    with cache.lease(blocks, ttl=30) as lease:                      # decode: the target
        send_to_prefill(lease.ticket)
        result = lease.wait()

    push = cache.write(blocks, to=ticket, layerwise=True)           # prefill: the source
    for l in range(30):
        compute(l)
        push.layer(l)
    push.finish(notification=b"first token")
    push.wait()

    with cache.lease(blocks, mode="read") as offer:                 # the other way: a peer reads
        send(offer.ticket)
    cache.read(blocks, source=ticket).wait()

Leases, transfers and what they hand out are pending things with one interface: poll, wait, await, fileno.
Every call ends by its deadline. The caller's bytes are the bytes that move: this process copies none.
"""

from . import _faults
from ._cache import Cache
from ._client import Client
from ._connect import connect
from ._faults import *  # noqa: F403
from ._keys import Holder, Lookup, chain_keys
from ._layout import Layout
from ._lease import Lease, LeaseResult
from ._offer import Advertisement, HolderResult, OfferResult, ReadLease
from ._pending import Pending
from ._post import Post, PostResult
from ._prepared import Prepared
from ._pull import Pull
from ._push import Push
from ._region import Region
from ._scatter import Scatter
from ._states import BlockStates
from ._status import Status
from ._trace import Span
from ._transfer import TransferResult
from ._version import __version__

# help(kvxfer) draws the tree of errors.
__doc__ = f"{__doc__}\n{_faults.__doc__}"

__all__ = [
    "connect",
    "Client",
    "Status",
    "Layout",
    "Cache",
    "BlockStates",
    "Lease",
    "LeaseResult",
    "ReadLease",
    "OfferResult",
    "HolderResult",
    "Push",
    "Pull",
    "TransferResult",
    "Prepared",
    "Post",
    "PostResult",
    "Region",
    "Advertisement",
    "Scatter",
    "Lookup",
    "Holder",
    "chain_keys",
    "Pending",
    "Span",
    "__version__",
]
__all__ += _faults.__all__
# How errors are read from the wire is nobody else's business.
__all__.remove("BY_CODE")
__all__.remove("from_wire")
