from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import mmap
import os
import random
import threading
import weakref
from typing import Any

import numpy
import pytest
from adopting import LARGE, PAGE, Tensor, adopt, all_given_back, fill, private_pages
from test_fork import in_child

import kvxfer
from kvxfer import _adopt, _adopted
from kvxfer._adopted import Adopted
from kvxfer._extent import Extent

__all__ = ["all_given_back"]


def test_a_large_array_keeps_address_and_contents(rng: random.Random) -> None:
    """As large arrays of numpy are: not at a page's begin, in a mapping that malloc made for them alone."""
    a = numpy.empty(LARGE + 12345, numpy.uint8)
    addr = a.ctypes.data
    assert addr % PAGE, "numpy's arrays begin behind malloc's header"
    want = fill(a, rng)
    memory = adopt(a)
    assert memory.guarantee == "full"
    assert a.ctypes.data == addr
    assert a.tobytes() == want
    assert bytes(memory.map) == want

    # Seen both ways, through the descriptor as the daemon sees it.
    wire = memory.to_wire()
    assert wire == {"id": memory.id, "kind": "memfd", "size": a.nbytes, "offset": addr % PAGE}
    stat = os.fstat(memory.fd)
    whole = -(-(addr % PAGE + a.nbytes) // PAGE) * PAGE
    assert stat.st_size == whole and stat.st_blocks * 512 >= whole
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS) == seals
    for at in (0, 1, PAGE, a.nbytes // 2, a.nbytes - 1):
        os.pwrite(memory.fd, b"\x01", wire["offset"] + at)
        assert a[at] == 1
        a[at] = 2
        assert os.pread(memory.fd, 1, wire["offset"] + at) == b"\x02"
    memory.close()
    a[5] = 77  # it stays usable, and malloc can free it
    assert a[5] == 77
    del a


@pytest.mark.parametrize("pages", [1, 2, 17])
def test_whole_pages_of_any_number(rng: random.Random, pages: int) -> None:
    a = numpy.frombuffer(private_pages(pages * PAGE), numpy.uint8)
    want = fill(a, rng)
    memory = adopt(a)
    assert "offset" not in memory.to_wire() and a.tobytes() == want
    memory.close()


@pytest.mark.parametrize("cut", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE])
def test_chunks_end_anywhere(rng: random.Random, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """Sizes around the border of a part: each byte is where it was."""
    monkeypatch.setattr(_adopt, "CHUNK", 64 * PAGE)
    a = numpy.empty(LARGE + cut, numpy.uint8)
    want = fill(a, rng)
    memory = adopt(a)
    assert a.tobytes() == want and os.pread(memory.fd, 1 << 20, a.ctypes.data % PAGE) == want[: 1 << 20]
    memory.close()


def test_untouched_pages_become_real_ones() -> None:
    a = numpy.zeros(LARGE, numpy.uint8)
    memory = adopt(a)
    assert os.fstat(memory.fd).st_blocks * 512 >= LARGE
    assert not a.any()
    memory.close()


def test_small_arrays_share_their_pages_and_are_refused() -> None:
    """What malloc keeps in its heap: other objects lie in the same pages."""
    for n in (1, 100, PAGE, 3 * PAGE):
        a = numpy.ones(n, numpy.uint8)
        with pytest.raises(kvxfer.NotSupported, match=r"allowed private memory of its own pages") as e:
            adopt(a)
        assert e.value.field == "tensors"
        assert (a == 1).all()


def test_a_slice_of_shared_edges_is_refused() -> None:
    """Part of a mapping whose rest belongs to somebody else; the whole of it is taken."""
    m = private_pages(8 * PAGE)
    for a, b in ((1, 8 * PAGE - PAGE), (PAGE, 5 * PAGE + 9), (PAGE + 16, 7 * PAGE)):
        with pytest.raises(kvxfer.NotSupported, match="something else besides"):
            adopt(memoryview(m)[a:b])
    memory = adopt(memoryview(m)[PAGE : 5 * PAGE])
    memory.close()
    gc.collect()
    m.close()


def test_an_unaligned_slice_of_one_large_array_is_taken(rng: random.Random) -> None:
    """The rest of its edge pages is the same array's: the header of malloc says so."""
    a = numpy.empty(LARGE, numpy.uint8)
    want = fill(a, rng)
    memory = adopt(a[100 : LARGE - 100])
    assert a.tobytes() == want
    memory.map[0] = a[100] ^ 255
    assert a[100] == memory.map[0]
    memory.close()


@pytest.mark.parametrize("alignment", [64, PAGE, 1 << 21])
def test_aligned_blocks_of_malloc(rng: random.Random, alignment: int) -> None:
    """As large tensors of torch are: at a multiple of 64, behind a header that tells its mapping."""
    p = ctypes.c_void_p()
    assert (
        _adopt._libc.posix_memalign(ctypes.byref(p), ctypes.c_size_t(alignment), ctypes.c_size_t(LARGE + 5))
        == 0
    )
    assert p.value is not None
    a = numpy.frombuffer(memoryview((ctypes.c_ubyte * (LARGE + 5)).from_address(p.value)), numpy.uint8)
    want = fill(a, rng)
    memory = adopt(Tensor(a, a))
    assert a.tobytes() == want and os.pread(memory.fd, 9, p.value % PAGE) == want[:9]
    memory.close()
    _adopt._libc.free.argtypes = [ctypes.c_void_p]
    _adopt._libc.free(p)


def test_a_whole_mapping_is_taken_although_its_end_is_not_a_page() -> None:
    m = private_pages(64 * PAGE)
    lo = ctypes.addressof(ctypes.c_char.from_buffer(m))
    # Guards on both sides, so that neighbours cannot melt into it.
    assert _adopt._libc.mprotect(ctypes.c_void_p(lo), PAGE, 0) == 0
    assert _adopt._libc.mprotect(ctypes.c_void_p(lo + 63 * PAGE), PAGE, 0) == 0
    memory = adopt(memoryview(m)[PAGE + 16 : 63 * PAGE - 9])
    memory.map[:3] = b"abc"
    assert m[PAGE + 16 : PAGE + 19] == b"abc"
    memory.close()
    with pytest.raises(kvxfer.NotSupported, match="not mapped for reading and writing"):
        adopt(memoryview(m)[: 2 * PAGE])
    for at in (0, 63 * PAGE):
        assert _adopt._libc.mprotect(ctypes.c_void_p(lo + at), PAGE, 3) == 0


def test_files_and_shared_memory_are_refused(tmp_path: Any) -> None:
    (tmp_path / "f").write_bytes(bytes(4 * PAGE))
    file = numpy.memmap(tmp_path / "f", numpy.uint8, "r+")
    with pytest.raises(kvxfer.NotSupported, match="a file or shared already"):
        adopt(file)
    with pytest.raises(kvxfer.NotSupported, match="a file or shared already"):
        adopt(mmap.mmap(-1, 4 * PAGE))
    hole = Extent(PAGE, 4 * PAGE, PAGE, ())
    with pytest.raises(kvxfer.NotSupported, match="a part of it is not mapped"):
        _adopt.share("op", "tensors", "x", hole)


def test_what_is_handed_over_cannot_be_taken_a_second_time() -> None:
    a = numpy.zeros(LARGE, numpy.uint8)
    memory = adopt(a, name="first")
    for again in (a, a[: 2 * PAGE], a[LARGE - 1 :]):
        for way in ("share", "process", "auto"):
            with pytest.raises(kvxfer.AlreadyExists, match="'first'"):
                adopt(again, way)
    memory.close()


def test_neighbours_in_a_page_may_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    """The second way takes bytes, not pages."""
    m = private_pages(PAGE)
    parts = [memoryview(m)[:100], memoryview(m)[100:200]]
    first = adopt(parts[0], "process")
    with pytest.raises(kvxfer.AlreadyExists):
        adopt(m, "share", "all")
    second = adopt(parts[1], "auto", "second")
    assert second.guarantee == "live-client-only" and "second" in caplog.text
    with pytest.raises(kvxfer.AlreadyExists):
        adopt(memoryview(m)[199:], "process")
    first.close()
    second.close()


def test_given_back_it_is_taken_again(rng: random.Random) -> None:
    a = numpy.empty(LARGE, numpy.uint8)
    want = fill(a, rng)
    old = adopt(a)
    late = os.dup(old.fd)
    old.close()
    new = adopt(a)
    os.pwrite(late, b"late", 0)  # a daemon that still has the old object
    os.close(late)
    assert a.tobytes() == want
    new.close()


def test_a_failure_in_the_middle_changes_no_byte(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    a = numpy.empty(LARGE, numpy.uint8)
    want = fill(a, rng)
    monkeypatch.setattr(_adopt, "CHUNK", 1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    real, calls = _adopt._replace, 0

    def fails(*args: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError(12, "Cannot allocate memory")
        real(*args)

    monkeypatch.setattr(_adopt, "_replace", fails)
    with pytest.raises(kvxfer.ResourceExhausted, match="Cannot allocate memory"):
        adopt(a)
    assert len(os.listdir("/proc/self/fd")) == before
    assert a.tobytes() == want
    a[:] = 9
    monkeypatch.setattr(_adopt, "_replace", real)
    memory = adopt(a)
    assert (a == 9).all()
    memory.close()


def test_the_kernels_refusal_is_told() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        _adopt._replace(0, 0, PAGE + 1, PAGE)


def test_not_enough_memory_is_noticed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(op: str, field: str, size: int) -> None:
        raise kvxfer.ResourceExhausted("0 are available", op=op, field=field)

    a = numpy.ones(LARGE, numpy.uint8)
    monkeypatch.setattr(_adopt, "check_available", none_left)
    with pytest.raises(kvxfer.ResourceExhausted):
        adopt(a)
    assert (a == 1).all()


def test_threads_may_read_meanwhile(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    a = numpy.empty(LARGE, numpy.uint8)
    want = numpy.frombuffer(fill(a, rng), numpy.uint8)
    monkeypatch.setattr(_adopt, "CHUNK", 1 << 20)
    wrong: list[int] = []
    stop, rounds = threading.Event(), [0, 0]

    def read(k: int) -> None:
        while not stop.is_set():
            if not numpy.array_equal(a, want):
                wrong.append(k)
            rounds[k] += 1

    threads = [threading.Thread(target=read, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    memory = adopt(a)
    memory.close()
    done = list(rounds)
    while any(now < then + 2 for now, then in zip(rounds, done, strict=True)):
        assert not wrong
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


def test_memory_does_not_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment the memfd's pages and the old ones are one part more than the array at most."""
    page_sizes: list[int] = []
    real = _adopt._replace

    def resident() -> int:
        with open("/proc/self/status") as f:
            kib = dict(line.split(":", 1) for line in f)
        return sum(int(kib[k].split()[0]) for k in ("RssAnon", "RssShmem")) << 10

    def watched(memfd: int, *args: int) -> None:
        page_sizes.append(resident() + os.fstat(memfd).st_blocks * 512)
        real(memfd, *args)

    a = numpy.ones(4 * LARGE, numpy.uint8)
    monkeypatch.setattr(_adopt, "CHUNK", 4 << 20)
    monkeypatch.setattr(_adopt, "_replace", watched)
    before = resident()
    memory = adopt(a)
    # Pages of the memfd that are mapped are not resident before they are touched; what exists is their sum.
    assert max(page_sizes) - before <= LARGE
    memory.close()


def test_the_second_way() -> None:
    a = numpy.arange(100, dtype=numpy.uint8)
    memory = adopt(a, "process")
    assert memory.guarantee == "live-client-only"
    wire = memory.to_wire()
    assert wire == {"id": memory.id, "kind": "process", "size": 100, "addr": a.ctypes.data}
    assert os.readlink(f"/proc/self/fd/{memory.fd}") == f"/proc/{os.getpid()}/mem"
    assert os.pread(memory.fd, 100, wire["addr"]) == a.tobytes()
    os.pwrite(memory.fd, b"xyz", wire["addr"] + 97)
    assert a[97:].tobytes() == b"xyz" == bytes(memory.map[97:])
    memory.close()


def test_auto_says_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    large, small = numpy.zeros(LARGE, numpy.uint8), numpy.zeros(10, numpy.uint8)
    with caplog.at_level(logging.WARNING, "kvxfer"):
        shared = adopt(large, "auto", "large")
        assert shared.guarantee == "full" and not caplog.records
        reached = adopt(small, "auto", "small")
    assert reached.guarantee == "live-client-only"
    assert "small" in caplog.text and "ends with this process" in caplog.text
    shared.close()
    reached.close()


def test_owners_live_until_it_is_given_back() -> None:
    a = numpy.zeros(LARGE, numpy.uint8)
    alive = weakref.ref(a)
    memory = adopt(a[16:])
    view = memoryview(memory.map)[:4]
    del a
    gc.collect()
    assert alive() is not None
    memory.close()
    gc.collect()
    assert alive() is not None, "a view keeps it too"
    view[0] = 1
    del view
    gc.collect()
    assert alive() is None
    buffer = bytearray(100)
    reached = adopt(buffer, "process")
    with pytest.raises(BufferError):
        buffer.clear()  # it would be freed
    reached.close()
    gc.collect()
    buffer.clear()


def test_unfenced_memory_is_kept_for_good(caplog: pytest.LogCaptureFixture) -> None:
    a = numpy.zeros(10, numpy.uint8)
    alive = weakref.ref(a)
    for end in (Adopted.give_up, Adopted.__del__):
        memory = adopt(a, "process")
        end(memory)
    del a, memory
    gc.collect()
    assert alive() is not None
    assert "stays allocated" in caplog.text
    _adopted._unfenced.clear()
    gc.collect()
    assert alive() is None


def test_a_forked_child_shares_the_pages_and_loses_the_descriptors() -> None:
    a = numpy.zeros(LARGE, numpy.uint8)
    small = numpy.zeros(10, numpy.uint8)
    shared, reached = adopt(a), adopt(small, "process")

    def check() -> None:
        assert shared.fd == reached.fd == -1
        own = adopt(a)  # of its own from here on, with the contents that it had
        a[1] = 5
        own.close()
        small[0] = 6

    def writes() -> None:
        a[0] = 4

    in_child(check)
    assert a[1] == 0 and small[0] == 0
    in_child(writes)
    assert a[0] == 4, "after a fork adopted pages are shared"
    shared.close()
    reached.close()
