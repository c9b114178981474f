"""The decode process: leases blocks, gets the prompt's KV cache written into them, and generates.

It never sees the prompt's text or the prefill's activations: only the token ids, the last position and the
cache.
"""

from __future__ import annotations

import time

from engine import hear, start, tell


def main() -> None:
    """Serve one request."""
    engine = start("decode")
    request = hear()
    tokens, blocks, leased = request["tokens"], request["blocks"], request["leased"]
    with engine.client.span("decode", traceparent=request["traceparent"], tokens=request["count"]) as span:
        lease = engine.cache.lease(blocks[:leased], mode="write", ttl=120.0, traceparent=span.traceparent)
        tell(ticket=lease.ticket)
        # The first step reads the cache only; it goes through a layer as soon as that layer is there.
        steps = engine.model.decode(
            tokens[-1],
            len(tokens) - 1,
            engine.paged,
            blocks,
            request["count"],
            lambda layer: lease.wait_layer(layer, 120.0),
        )
        generated = [next(steps).token]
        result = lease.wait(120.0)  # nothing is used before the transfer is committed
        first_ns = time.monotonic_ns()
        if int(result.notification) != generated[0]:
            raise SystemExit(f"prefill's first token is {result.notification!r}, decode's {generated[0]}")
        # New positions go into the last block too, so it no longer is what was committed.
        engine.cache.evict(blocks[leased - 1 : leased])
        generated += [step.token for step in steps]
    tell(
        generated=generated,
        first_ns=first_ns,
        ended_ns=time.monotonic_ns(),
        blocks=result.blocks,
        bytes=result.bytes,
    )
    engine.client.close()


if __name__ == "__main__":
    main()
