"""One virtual machine: QEMU without KVM, Debian's kernel, the agent of ``test/rdma/guest``."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import json
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import initramfs
import kernel
import network
from monitor import Monitor

CHUNK = 256 << 10
#: A boot takes about five seconds on an idle machine of two cores.
BOOT_SECONDS = 180.0

_libc = ctypes.CDLL(None, use_errno=True)


class Result(NamedTuple):
    """How a command ended: its exit status (minus the signal that ended it) and what it wrote."""

    rc: int
    out: str
    err: str


class GuestError(Exception):
    """A command or a machine did not do what it should."""


class _Stream:
    """What came back for one command or file operation."""

    def __init__(self, log: IO[bytes] | None = None) -> None:
        self.parts: dict[bytes, bytearray] = {b"o": bytearray(), b"e": bytearray(), b"d": bytearray()}
        self.result: dict[str, object] | None = None
        self.log = log

    def text(self, kind: bytes) -> str:
        return self.parts[kind].decode(errors="replace")


class Process:
    """A command that runs in the machine."""

    def __init__(self, vm: VM, stream: int, argv: Sequence[str]) -> None:
        self._vm = vm
        self._id = stream
        self.argv = list(argv)

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Send a signal to the command and all it started (one process group)."""
        self._vm._send(self._id, b"S", bytes([int(sig)]))

    def input(self, data: bytes) -> None:
        """Write to its standard input (``start(..., stdin=True)``); empty bytes close it."""
        self._vm._send(self._id, b"I", data)

    def output(self) -> str:
        """What it has written so far, standard error behind standard output."""
        with self._vm._changed:
            s = self._vm._streams[self._id]
            return s.text(b"o") + s.text(b"e")

    @property
    def running(self) -> bool:
        """Whether its end was not told yet."""
        with self._vm._changed:
            return self._vm._streams[self._id].result is None and not self._vm._gone

    def wait(self, timeout: float = 60) -> Result:
        """Wait for its end; raises GuestError when it does not come within ``timeout`` seconds."""
        s = self._vm._finished(self._id, timeout, " ".join(self.argv))
        assert s.result is not None
        if s.result["error"]:
            raise GuestError(f"{self._vm.role}: {' '.join(self.argv)}: {s.result['error']}")
        return Result(int(str(s.result["rc"])), s.text(b"o"), s.text(b"e"))

    def wait_for_lines(self, n: int, timeout: float = 60) -> list[str]:
        """Wait until its standard output has ``n`` lines; returns all it has."""
        s = self._vm._streams[self._id]
        with self._vm._changed:
            self._vm._changed.wait_for(
                lambda: s.parts[b"o"].count(b"\n") >= n or s.result is not None or self._vm._gone, timeout
            )
            lines = s.text(b"o").splitlines()
            if len(lines) < n:
                raise GuestError(f"{self._vm.role}: {' '.join(self.argv)} wrote no line {n}:\n{lines}")
            return lines

    def wait_for(self, text: str, timeout: float = 60) -> str:
        """Wait until it has written ``text``; returns what it wrote. GuestError when it ends without."""
        deadline = time.monotonic() + timeout
        with self._vm._changed:
            s = self._vm._streams[self._id]
            while text not in s.text(b"o") + s.text(b"e"):
                if s.result is not None or self._vm._gone or time.monotonic() > deadline:
                    said = s.text(b"o") + s.text(b"e")
                    raise GuestError(f"{self._vm.role}: {' '.join(self.argv)} did not say {text!r}:\n{said}")
                self._vm._changed.wait(1)
            return s.text(b"o") + s.text(b"e")


class VM:
    """A machine that is up when the constructor of its owner returned; ``close`` ends it.

    ``nics`` are the ends of Ethernet links, each a connected stream socket whose other end is another
    machine's; the guest sees them as eth0, eth1 and so on. Booting is two steps so that several machines
    boot side by side: the constructor starts QEMU and ``booted`` waits.
    """

    def __init__(
        self,
        role: str,
        files: Mapping[str, Path] | None = None,
        nics: Sequence[socket.socket] = (),
        memory_mib: int = 2048,
        cpus: int = 2,
    ) -> None:
        self.role = role
        self._dir = tempfile.TemporaryDirectory(prefix=f"kvx-vm-{role}-")
        where = Path(self._dir.name)
        unpacked = kernel.kernel()
        initrd = where / "initrd"
        initramfs.build(unpacked, files or {}, initrd)
        self.console = where / "console.log"
        self._ids = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._ready = False
        self._gone = False
        self._bands: set[str] = set()
        self._unplugged: set[str] = set()
        self._installed = {
            name: hashlib.sha256(file.read_bytes()).hexdigest()
            for name, file in initramfs.with_libraries(files or {}).items()
        }
        self._logs: list[IO[bytes]] = []
        self.began = time.monotonic()
        self.boot_seconds = 0.0
        self._port, theirs = socket.socketpair()
        ours, monitor = socket.socketpair()
        self._monitor = Monitor(ours)
        args = [
            *(
                "qemu-system-x86_64",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max",
                "-smp",
                str(cpus),
                "-m",
                str(memory_mib),
            ),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(kernel.image(unpacked)), "-initrd", str(initrd)),
            *("-append", "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on net.ifnames=0"),
            *("-serial", f"file:{self.console}", "-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=agent,fd={theirs.fileno()}"),
            *("-device", "virtserialport,chardev=agent,name=kvxfer.guest"),
            *("-chardev", f"socket,id=qmp,fd={monitor.fileno()}", "-mon", "chardev=qmp,mode=control"),
        ]
        for i, nic in enumerate(nics):
            mac = f"52:54:00:00:{i:02x}:{sum(role.encode()) & 0xFF:02x}"
            args += [
                "-netdev",
                f"socket,id=n{i},fd={nic.fileno()}",
                "-device",
                f"virtio-net-pci,netdev=n{i},mac={mac},romfile=",
            ]
        with (where / "qemu.log").open("wb") as log:
            self._qemu = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), monitor.fileno(), *(n.fileno() for n in nics)],
                preexec_fn=_die_with_parent,
            )
        theirs.close()
        monitor.close()
        for nic in nics:
            nic.close()
        self._send(0, b"H", b"")
        self._reader = threading.Thread(target=self._read, name=f"vm-{role}", daemon=True)
        self._reader.start()

    def booted(self, timeout: float = BOOT_SECONDS) -> VM:
        """Wait until commands can be run."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._gone, timeout)
            if not self._ready:
                raise GuestError(f"{self.role} did not boot in {timeout:.0f} s: {self._said()}")
        # QEMU has read it, and a run that is killed leaves less behind.
        (Path(self._dir.name) / "initrd").unlink(missing_ok=True)
        return self

    def run(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        check: bool = True,
        cwd: str = "/tmp",
    ) -> Result:
        """Run a command (a string is a shell's) and wait for its end.

        After ``timeout`` seconds it is killed and GuestError raised; with ``check`` also when it fails.
        """
        p = self._start(argv, env, timeout, cwd, None, False)
        r = p.wait(timeout + 30)
        stream = self._streams[p._id]
        assert stream.result is not None
        if stream.result["timed_out"]:
            raise GuestError(f"{self.role}: {' '.join(p.argv)} took more than {timeout} s:\n{r.out}{r.err}")
        with self._changed:
            del self._streams[p._id]
        if check and r.rc != 0:
            raise GuestError(f"{self.role}: {' '.join(p.argv)} ended with {r.rc}:\n{r.out}{r.err}")
        return r

    def start(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None = None,
        cwd: str = "/tmp",
        log: Path | None = None,
        stdin: bool = False,
    ) -> Process:
        """Start a command (a string is a shell's); ``log`` is a file of the host that gets what it writes."""
        return self._start(argv, env, 0, cwd, log, stdin)

    def _start(
        self,
        argv: Sequence[str] | str,
        env: Mapping[str, str] | None,
        timeout: float,
        cwd: str,
        log: Path | None,
        stdin: bool,
    ) -> Process:
        words = ["/bin/sh", "-c", argv] if isinstance(argv, str) else [str(w) for w in argv]
        sink = log.open("wb") if log else None
        if sink:
            self._logs.append(sink)
        stream = self._open(_Stream(sink))
        what = {"argv": words, "env": dict(env or {}), "dir": cwd, "timeout": timeout, "stdin": stdin}
        self._send(stream, b"C", json.dumps(what).encode())
        return Process(self, stream, words)

    def put(self, path: str, data: bytes, mode: int = 0o755) -> None:
        """Write a file of the machine, of any size."""
        streams = []
        for at in range(0, max(len(data), 1), CHUNK):
            head = json.dumps({"path": path, "mode": mode, "append": at > 0}).encode()
            streams.append(self._ask(b"W", head + b"\n" + data[at : at + CHUNK]))
        for stream in streams:
            self._answer(stream, path)

    def install(self, files: Mapping[str, Path]) -> None:
        """Copy files of the host into the machine (its path: the host's), with the libraries they need.

        What the machine has already from here is not copied again.
        """
        for name, file in initramfs.with_libraries(files).items():
            data = file.read_bytes()
            mark = hashlib.sha256(data).hexdigest()
            if self._installed.get(name) != mark:
                self.run(["rm", "-f", name])  # what runs cannot be overwritten
                self.put(name, data, file.stat().st_mode & 0o777)
                self._installed[name] = mark

    def reset(self) -> None:
        """End every command, forget what was delayed and plug cables in, for another test file to go on."""
        with self._changed:
            left = [i for i, s in self._streams.items() if s.result is None]
        for i in left:
            self._send(i, b"S", bytes([signal.SIGKILL]))
        for i in left:
            self._finished(i, 60, "a command that was left running")
        with self._changed:
            self._streams.clear()
        for log in self._logs:
            log.close()
        self._logs.clear()
        for dev in list(self._bands):
            self.drop_delayed(dev)
        for dev in list(self._unplugged):
            self.cable(dev, plugged=True)

    def get(self, path: str) -> bytes:
        """Read a file of the machine."""
        return bytes(self._answer(self._ask(b"R", path.encode()), path).parts[b"d"])

    def netem(
        self,
        dev: str,
        delay_ms: float = 0,
        jitter_ms: float = 0,
        loss_percent: float = 0,
        duplicate_percent: float = 0,
        reorder_percent: float = 0,
    ) -> None:
        """Say what happens to RoCE packets that leave ``dev`` from now on; without arguments: nothing.

        Packets that are delayed already stay so. netem of these kernels takes no seed: a test draws its
        values from its own and cannot repeat what hits which packet; ``tapwire`` can.
        """
        words = network.netem_words(delay_ms, jitter_ms, loss_percent, duplicate_percent, reorder_percent)
        if dev not in self._bands:
            self.run(network.roce_band(dev))
            self._bands.add(dev)
        self.run(f"tc qdisc change dev {dev} parent 1:4 handle 40: netem {words}")

    def drop_delayed(self, dev: str) -> None:
        """Lose what netem delays now and end it."""
        self.run(f"tc qdisc del dev {dev} root", check=False)
        self._bands.discard(dev)

    def link(self, dev: str, up: bool) -> None:
        """Take a network device of the guest down or up, as its administrator would."""
        self.run(["ip", "link", "set", dev, "up" if up else "down"])

    def cable(self, dev: str, plugged: bool) -> None:
        """Pull this machine's end of a cable out of ``eth0`` and so on, or put it back: the carrier is lost.

        Addresses and RDMA devices stay. The other machine sees no more than packets that do not come.
        """
        self._monitor.do("set_link", name=f"n{dev.removeprefix('eth')}", up=plugged)
        (self._unplugged.discard if plugged else self._unplugged.add)(dev)

    def freeze(self) -> None:
        """Stop the whole machine, with its kernel and devices, until ``thaw``."""
        self._monitor.do("stop")

    def thaw(self) -> None:
        """Let the machine go on; its clock goes on where it stopped."""
        self._monitor.do("cont")

    def _ask(self, kind: bytes, payload: bytes) -> int:
        stream = self._open(_Stream())
        self._send(stream, kind, payload)
        return stream

    def _answer(self, stream: int, what: str) -> _Stream:
        s = self._finished(stream, 120, what)
        with self._changed:
            del self._streams[stream]
        assert s.result is not None
        if s.result["error"]:
            raise GuestError(f"{self.role}: {s.result['error']}")
        return s

    def _open(self, s: _Stream) -> int:
        with self._changed:
            stream = next(self._ids)
            self._streams[stream] = s
        return stream

    def _send(self, stream: int, kind: bytes, payload: bytes) -> None:
        with self._sending:
            try:
                self._port.sendall(struct.pack(">IIc", 5 + len(payload), stream, kind) + payload)
            except OSError as e:
                raise GuestError(f"{self.role} is gone: {self._said()}") from e

    def _finished(self, stream: int, timeout: float, what: str) -> _Stream:
        with self._changed:
            s = self._streams[stream]
            self._changed.wait_for(lambda: s.result is not None or self._gone, timeout)
            if s.result is None:
                why = "the machine ended" if self._gone else f"no end within {timeout} s"
                raise GuestError(f"{self.role}: {what}: {why}\n{s.text(b'o')}{s.text(b'e')}\n{self._said()}")
        return s

    def _read(self) -> None:
        f = self._port.makefile("rb", buffering=1 << 20)
        with contextlib.suppress(OSError, ValueError):
            while len(head := f.read(9)) == 9:
                n, stream, kind = struct.unpack(">IIc", head)
                payload = f.read(n - 5)
                with self._changed:
                    if kind == b"h":
                        self._ready = True
                        self.boot_seconds = time.monotonic() - self.began
                    elif s := self._streams.get(stream):
                        if kind == b"x":
                            s.result = json.loads(payload)
                        else:
                            s.parts[kind] += payload
                            if s.log:
                                s.log.write(payload)
                                s.log.flush()
                    self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _said(self) -> str:
        """The end of the console and of what QEMU wrote: why a machine is not there."""
        where = Path(self._dir.name)
        tails = [
            p.read_bytes()[-2000:].decode(errors="replace")
            for p in (self.console, where / "qemu.log")
            if p.exists()
        ]
        return "\n".join(tails)

    @property
    def alive(self) -> bool:
        """Whether the machine runs and its agent answers."""
        return not self._gone and self._qemu.poll() is None

    @property
    def pid(self) -> int:
        """QEMU's process."""
        return self._qemu.pid

    def hang_up(self) -> None:
        """Leave the agent alone; it powers the machine off."""
        self._port.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the machine at once."""
        self._qemu.kill()
        self._qemu.wait()
        self._reader.join(10)
        self._port.close()
        self._monitor.close()
        for log in self._logs:
            log.close()
        self._dir.cleanup()


def _die_with_parent() -> None:
    # The agent powers off when its host hangs up; this is for a guest that hangs. It names the thread that
    # starts QEMU, so machines are started from a thread that lives as long as they do.
    _libc.prctl(1, signal.SIGKILL)
