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

Leases, pushes and what they hand out are pending things with one interface: poll, wait, await, fileno. Every
call ends by its deadline. The caller's bytes are the bytes that move: nothing is copied in this process.
"""

from . import _faults
from ._cache import BlockStates, Cache
from ._client import Client, connect
from ._faults import *  # noqa: F403
from ._layout import Layout
from ._lease import Lease, LeaseResult
from ._pending import Pending
from ._push import Push, TransferResult
from ._register import AdoptedRegion
from ._status import Status
from ._trace import Span
from ._version import __version__

# help(kvxfer) draws the tree of errors.
__doc__ = f"{__doc__}\n{_faults.__doc__}"

__all__ = [
    "connect",
    "Client",
    "Status",
    "Layout",
    "Cache",
    "AdoptedRegion",
    "BlockStates",
    "Lease",
    "LeaseResult",
    "Push",
    "TransferResult",
    "Pending",
    "Span",
    "__version__",
]
__all__ += _faults.__all__
# How errors are read from the wire is nobody else's business.
__all__.remove("BY_CODE")
__all__.remove("from_wire")
