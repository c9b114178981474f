from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import kvxfer

ERRORS = [
    "KvxferError",
    "RequestError",
    "InvalidArgument",
    "NotSupported",
    "NotFound",
    "AlreadyExists",
    "BlocksBusy",
    "ResourceExhausted",
    "MemoryRejected",
    "PermissionDenied",
    "TransferError",
    "TicketInvalid",
    "TicketBound",
    "LeaseExpired",
    "LeaseRevoked",
    "LayoutMismatch",
    "PeerLost",
    "PeerUnreachable",
    "StaleEpoch",
    "DeadlineExceeded",
    "Cancelled",
    "MemoryFault",
    "OutOfBounds",
    "StaleKey",
    "ClientGone",
    "DaemonError",
    "VersionMismatch",
    "FeatureRequired",
    "ProtocolViolation",
    "DaemonUnavailable",
    "Closed",
    "ForkedClient",
    "NodeError",
    "Internal",
    "Draining",
    "NameTaken",
    "RegistryUnavailable",
    "StoreFailed",
    "ConfigInvalid",
]
REST = [
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
MEMBERS = {
    "Client": "allocate_cache allocate_region boot_id close completed daemon_exited epoch fileno lease lookup"
    " node ping process_watched reconnect register_cache register_region span status version",
    "Layout": "block_bytes layer_shape order piece_bytes plane_block_bytes planes tp_rank tp_size",
    "Cache": "block_states drop evict granted guarantee layer lease memory prepare publish read write",
    "Lease": "exception fileno layer poll released renew revoke transfer_id visible_layers wait wait_layer"
    " wait_released when_released",
    "ReadLease": "exception fileno holders next_holder poll released renew revoke wait wait_released"
    " when_released",
    "Region": "advertise array deregister guarantee memory prepare readv writev",
    "Advertisement": "exception fileno holders next_holder poll released renew revoke unadvertise wait"
    " wait_released when_released",
    "Pull": "cancel exception fileno poll released wait wait_released when_released",
    "Scatter": "cancel exception fileno poll released wait wait_released when_released",
    "Push": "cancel exception fileno finish layer poll released wait wait_released when_released",
    "Prepared": "cancel exception fileno finish poll post released run wait wait_released when_released",
    "Post": "exception poll wait",
    "Pending": "exception fileno poll wait",
    "Span": "event sampled set span_id trace_id traceparent",
}


def test_all_is_exactly_the_documented_surface() -> None:
    assert sorted(kvxfer.__all__) == sorted(ERRORS + REST)
    assert len(set(kvxfer.__all__)) == len(kvxfer.__all__)
    for name in kvxfer.__all__:
        assert hasattr(kvxfer, name)


def test_members_are_exactly_the_documented_ones() -> None:
    for name, members in MEMBERS.items():
        cls = getattr(kvxfer, name)
        there = sorted(m for m in dir(cls) if not m.startswith("_"))
        assert there == sorted(members.split()), name
        for m in members.split():
            if isinstance(getattr(cls, m), (str, int)):  # a default of a dataclass
                continue
            assert inspect.getdoc(getattr(cls, m)), f"{name}.{m} has no docstring"


def test_the_tree_of_errors_is_drawn_and_true() -> None:
    doc = kvxfer.__doc__ or ""
    for name in ERRORS:
        assert name in doc
        assert issubclass(getattr(kvxfer, name), kvxfer.KvxferError)
        assert (getattr(kvxfer, name).__doc__ or "").strip()


def test_modules_are_private_and_typed() -> None:
    package = Path(kvxfer.__file__).parent
    assert (package / "py.typed").exists()
    assert [p.name for p in package.glob("*.py") if not p.name.startswith("_")] == []


def test_importing_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, kvxfer; bad = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)"
        " - {'kvxfer', '__main__', 'sitecustomize', 'usercustomize'};"
        "print(sorted(m for m in bad if 'numpy' in m or 'opentelemetry' in m))"
    )
    path = str(Path(kvxfer.__file__).parent.parent)
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path},
        check=True,
    )
    assert out.stdout.strip() == "[]"
