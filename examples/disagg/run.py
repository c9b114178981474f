"""kvxfer's demo: one request, prefilled in one process and decoded in another, through two daemons.

    python run.py [--prompt FILE] [--block-tokens 32] [--order HND] [--tokens 48] [--out DIR]

It starts a prefill node and a decode node (each a daemon and an engine process), plays the router between
them, compares what was generated with a run in one process, and ends with 1 on the first difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

import kvxfer

from daemons import Daemon
from smollm.model import Llama
from smollm.paged import Order, blocks_for, local_cache
from smollm.tokenizer import Tokenizer
from smollm.weights import Checkpoint, find_gguf

HERE = Path(__file__).resolve().parent


class Progress:
    """One line that says what is being done and since when."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stderr.isatty()

    def __call__(self, text: str, *, minor: bool = False) -> None:
        """Show a step; a minor one only where the line can be drawn over."""
        stamp = f"[{time.monotonic() - self._began:5.1f} s] {text}"
        if self._live:
            sys.stderr.write(f"\r\x1b[K{stamp}")
        elif not minor:
            sys.stderr.write(stamp + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._live:
            sys.stderr.write("\r\x1b[K")


class Worker:
    """An engine process, talked to by JSON lines."""

    def __init__(self, script: str, daemon: Daemon, args: list[str]) -> None:
        self.name = script
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / f"{script}.py"), "--socket", str(daemon.socket), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **message: Any) -> None:
        """Send one message."""
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for one message."""
        line = cast("IO[str]", self._process.stdout).readline()
        if not line:
            raise SystemExit(f"the {self.name} process ended with {self._process.wait()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def stop(self) -> None:
        """End it, kindly first."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def arguments() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description="Disaggregated prefill and decode of a real model through kvxfer."
    )
    ap.add_argument("--prompt", type=Path, default=HERE / "prompt.txt", help="file with the user's message")
    ap.add_argument("--block-tokens", type=int, default=32, help="tokens in a block (default 32)")
    ap.add_argument("--order", choices=["HND", "NHD"], default="HND", help="order of the axes in a block")
    ap.add_argument("--tokens", type=int, default=48, help="tokens to generate (default 48)")
    ap.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="where logs, traces and the picture go"
    )
    ap.add_argument("--bin", type=Path, default=HERE.parents[1] / "bin" / "kvxfer", help="the kvxfer binary")
    ap.add_argument("--seed", type=int, default=1, help="of the order in which blocks are handed out")
    args = ap.parse_args()
    if not 1 <= args.block_tokens <= 1024:
        ap.error(f"--block-tokens: {args.block_tokens}, allowed 1..1024")
    if not 1 <= args.tokens <= 1024:
        ap.error(f"--tokens: {args.tokens}, allowed 1..1024")
    try:
        args.text = args.prompt.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        ap.error(f"--prompt: {e}, allowed a readable file of UTF-8 text")
    if not args.text:
        ap.error(f"--prompt: {args.prompt} is empty, allowed at least one character that is no white space")
    if not os.access(args.bin, os.X_OK) or args.bin.is_dir():
        ap.error(f"--bin: {args.bin} is no program, allowed the binary that `make build` makes")
    try:
        make_room(args.out)
    except OSError as e:
        ap.error(f"--out: {e}, allowed a directory that can be written")
    return args


def make_room(out: Path) -> None:
    """Make ``out`` and remove what a former run left there; the user's own files in it stay."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("prefill", "decode"):
        state = out / name
        if not state.exists():
            continue
        # Only what a daemon left, also one that did not start: --out may be any directory of the user's.
        if (state / "daemon.lock").exists() or all(f.name == "log.txt" for f in state.iterdir()):
            shutil.rmtree(state)
        else:
            raise FileExistsError(f"{state} exists and is not of the demo")


def reference(
    checkpoint: Checkpoint, ids: list[int], block_tokens: int, order: Order, count: int
) -> list[int]:
    """The same request in this process alone, over a cache of its own."""
    model = Llama(checkpoint.weights())
    blocks = list(range(blocks_for(len(ids) + count, block_tokens)))
    cache = local_cache(checkpoint.config(), len(blocks), block_tokens, order)
    model.prefill(ids, cache, blocks)
    return [step.token for step in model.decode(ids[-1], len(ids) - 1, cache, blocks, count)]


def main() -> int:
    """Run the demo; 0 when both runs agree."""
    args = arguments()
    progress = Progress()
    # One core computes while the daemons have the other; in every process, so that sums have one order.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    order: Order = args.order

    progress("reading the prompt")
    checkpoint = Checkpoint(find_gguf())
    config = checkpoint.config()
    tokenizer = Tokenizer(checkpoint)
    ids = tokenizer.chat(args.text)
    if len(ids) + args.tokens > config.context:
        raise SystemExit(
            f"--prompt: {len(ids)} tokens and {args.tokens} more, the model takes {config.context}"
        )
    need, leased = (
        blocks_for(len(ids) + args.tokens, args.block_tokens),
        blocks_for(len(ids), args.block_tokens),
    )
    rng = random.Random(args.seed)
    total = 4 * need  # as in an engine at work, a request's blocks lie all over the cache
    tables = [rng.sample(range(total), need) for _ in range(2)]

    with ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvxfer-")))
        progress("starting the decode node and the prefill node")
        far = Daemon(args.bin, "decode", args.out / "decode", run, "--nats-listen", "127.0.0.1:0")
        stack.callback(far.stop)
        nats = far.wait_ready()["nats_url"]
        near = Daemon(args.bin, "prefill", args.out / "prefill", run, "--nats", nats)
        stack.callback(near.stop)
        near.wait_ready()

        progress("loading the model in both engine processes")
        engine = ["--blocks", str(total), "--block-tokens", str(args.block_tokens), "--order", order]
        prefill, decode = Worker("prefill", near, engine), Worker("decode", far, engine)
        stack.callback(prefill.stop)
        stack.callback(decode.stop)
        layers = prefill.hear()["layers"]
        decode.hear()

        with kvxfer.connect(str(far.socket), process="router") as router:
            with router.span("request", prompt_tokens=len(ids)) as span:
                common = {"tokens": ids, "leased": leased, "traceparent": span.traceparent}
                decode.tell(**common, blocks=tables[1], count=args.tokens)
                ticket = decode.hear()["ticket"]
                prefill.tell(**common, blocks=tables[0], ticket=ticket)
                while "layer" in (sent := prefill.hear()):
                    progress(f"prefill: layer {sent['layer'] + 1} of {layers} handed over", minor=True)
                progress("decoding")
                got = decode.hear()
            trace_id = span.traceparent.split("-")[1]
        prefill.stop()
        decode.stop()
        near.stop()
        far.stop()
        progress("the same request in one process, for comparison")
        want = reference(checkpoint, ids, args.block_tokens, order, args.tokens)
        progress.end()

    picture = args.out / "trace.svg"
    files = ["--file", str(near.trace_file), "--file", str(far.trace_file)]
    drawn = subprocess.run(
        [args.bin, "trace", "show", trace_id, *files, "--svg", picture],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if drawn.returncode != 0:
        print(drawn.stdout)
        return 1
    shape = f"of {args.block_tokens} tokens ({order}) in {config.layers} layers"
    report(sent, got, len(ids), tokenizer.decode(got["generated"]), shape)
    print(f"trace            {trace_id}\npicture          {picture}")
    for i, (a, b) in enumerate(zip(got["generated"], want, strict=True)):
        if a != b:
            print(f"\nDIFFERENT at token {i}: disaggregated {a}, one process {b}")
            return 1
    print(f"\nThe same {len(want)} tokens as in one process.")
    return 0


def report(sent: dict[str, Any], got: dict[str, Any], prompt: int, text: str, shape: str) -> None:
    """Print what moved, how, and when."""
    ms = 1e-6
    busy, exposed = max(1, sent["busy_ns"]), max(0, sent["last_ns"] - sent["ended_ns"])
    hidden = 1 - min(exposed, busy) / busy
    rate, wait = sent["bytes"] / busy, (got["first_ns"] - sent["ended_ns"]) * ms
    print(f"prompt           {prompt} tokens; prefill {(sent['ended_ns'] - sent['began_ns']) * ms:.0f} ms")
    print(f"moved            {sent['blocks']} blocks {shape}, {sent['bytes'] / 2**20:.1f} MiB")
    print(f"provider         {sent['provider']} ({sent['reason']})")
    print(f"rate             {rate:.2f} GB/s while bytes were in flight ({busy * ms:.1f} ms)")
    print(f"overlap          {100 * hidden:.0f}% of the transfer hid behind the prefill's computing")
    print(f"first token      {wait:.1f} ms from the end of prefill to the first decoded token")
    print(f"text             {text!r}")


if __name__ == "__main__":
    sys.exit(main())
