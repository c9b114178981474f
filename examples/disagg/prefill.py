"""The prefill process: computes the prompt's KV cache and pushes each layer as soon as it is done."""

from __future__ import annotations

import time

from engine import hear, start, tell


def main() -> None:
    """Serve one request."""
    engine = start("prefill")
    request = hear()
    tokens, blocks = request["tokens"], request["blocks"]
    with engine.client.span("prefill", traceparent=request["traceparent"], tokens=len(tokens)) as span:
        began = time.monotonic_ns()
        push = engine.cache.write(
            blocks[: request["leased"]],
            to=request["ticket"],
            layerwise=True,
            timeout=120.0,
            traceparent=span.traceparent,
        )

        def done(layer: int) -> None:
            push.layer(layer)
            tell(layer=layer)

        first = engine.model.prefill(tokens, engine.paged, blocks, done)
        ended = time.monotonic_ns()
        push.finish(notification=str(first.token).encode())
    result = push.wait()
    tell(
        began_ns=began,
        ended_ns=ended,
        last_ns=began + result.last_ns,
        busy_ns=result.busy_ns,
        blocks=result.blocks,
        bytes=result.bytes,
        provider=result.provider,
        reason=result.provider_reason,
        transfer_id=result.transfer_id,
        trace_id=result.trace_id,
    )
    engine.client.close()


if __name__ == "__main__":
    main()
