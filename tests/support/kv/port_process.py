"""A data port over pages that are files; run as a program it is the child of an engine client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.device.payload import DevicePayload, Payload, host_view
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.groups.ordered import ordered_ends
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.registry import make_ends
from stratos.kv_transfer.settings import GlooConfig, StagingConfig, TlsTransportConfig, TransportConfig
from stratos.worker.engine_client.child import run_engine_process
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.engine_client.thread import ThreadEngine
from tests.support.kv.ordered_gloo import OrderedGloo
from tests.support.kv.segment_memory import SEGMENTS, ends_over, span_of
from tests.support.servers.certificates import CertificateFolder
from tests.support.worlds.engine_clients import fork

MODULE = "tests.support.kv.port_process"


class FilePages:
    """What a test wrote for a leg is computed KV; what is written for a request can be read by its test."""

    def __init__(self, folder: Path, *, is_on_device: bool) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self.has_device_pages = folder, is_on_device

    def compute(self, leg: str, kv_range: KvRange, payload: bytes) -> None:
        (self._folder / f"computed-{leg}-{kv_range.token_begin}").write_bytes(payload)

    def written(self, key: RequestKey, kv_range: KvRange) -> bytes | None:
        """Once."""
        path = self._folder / f"written-{key.request_id}-{kv_range.token_begin}"
        if not path.exists():
            return None
        payload = path.read_bytes()
        path.unlink()
        return payload

    async def gather(self, leg: str, kv_range: KvRange, *, on_device: bool) -> tuple[Payload, int | None]:
        path = self._folder / f"computed-{leg}-{kv_range.token_begin}"
        if not path.exists():
            raise KeyError(leg)
        payload = memoryview(path.read_bytes())
        if not on_device:
            return payload, None
        return span_of(np.frombuffer(payload, dtype=np.uint8), payload), checksum(payload)

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: Payload) -> int | None:
        seen = host_view(payload)
        (self._folder / f"written-{key.request_id}-{kv_range.token_begin}").write_bytes(seen)
        return checksum(seen) if isinstance(payload, DevicePayload) else None


def settings_of(options: Mapping[str, Any]) -> TransportConfig:
    timeout_s = options["timeout_s"]
    return TransportConfig(
        shm_directory=Path(options["directory"]),
        staging=StagingConfig(
            slot_bytes=options["slot_bytes"], slots_per_pair=options["num_slots"], max_pairs=options["max_pairs"]
        ),
        gloo=GlooConfig(timeout_s=timeout_s),
        tls=TlsTransportConfig(timeout_s=timeout_s, **options.get("tls", {})),
    )


def transport_of(options: Mapping[str, Any], hub: InprocHub, role: PeerRole = PeerRole.PREFILL_WORKER) -> PortTransport:
    """Of the product, or one that stands for what needs a GPU; both ends have the certificate of ``role``."""
    name, settings = options["transport"], settings_of(options)
    directory, timeout_s = settings.shm_directory, settings.gloo.timeout_s
    if name == OrderedGloo.name:
        return PortTransport(make=lambda: ordered_ends(settings.staging, settings.gloo, OrderedGloo(settings.gloo)))
    if name == SEGMENTS:
        return PortTransport(make=lambda: ends_over(directory, settings.staging, timeout_s), is_on_device=True)
    folder = options["certificates"]
    tls = TlsContexts(CertificateFolder(Path(folder)).files(role)) if folder else None
    return PortTransport(make=lambda: make_ends(name, settings, hub=hub, tls=tls))


def engine_over(options: Mapping[str, Any]) -> ProcessEngine:
    """A client, not started, whose data port moves ``FilePages``."""
    return ProcessEngine(json.dumps(options).encode(), command=(MODULE,), launch=fork)


def _make(settings: bytes) -> ThreadEngine:
    options = json.loads(settings)
    pages = FilePages(Path(options["pages"]), is_on_device=options["transport"] == SEGMENTS)
    engine = ThreadEngine(EngineCore(FakeRunner(FakeConfig()), SchedulerConfig()))
    engine.data_port = LocalPort({options["transport"]: transport_of(options, InprocHub())}, pages)
    return engine


if __name__ == "__main__":
    run_engine_process(_make)
