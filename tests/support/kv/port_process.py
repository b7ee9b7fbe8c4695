"""A data port over pages that are files; run as a program it is the child of an engine client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.device.payload import DevicePayload
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.groups.ordered import OrderedRings, OrderedSender
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.port.base import DevicePages
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.registry import make_rings, make_sender
from stratos.kv_transfer.settings import GlooConfig, StagingConfig, TlsTransportConfig, TransportConfig
from stratos.worker.engine_client.child import run_engine_process
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.engine_client.thread import ThreadEngine
from tests.support.kv.ordered_gloo import OrderedGloo
from tests.support.kv.segment_memory import SEGMENTS, rings_over, sender_over, span_of
from tests.support.servers.certificates import CertificateFolder
from tests.support.worlds.engine_clients import fork

MODULE = "tests.support.kv.port_process"


class FilePages:
    """What a test wrote for a leg is computed KV; what is written for a request can be read by its test."""

    def __init__(self, folder: Path, *, is_on_device: bool) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._is_on_device = folder, is_on_device

    @property
    def device_pages(self) -> DevicePages | None:
        return self if self._is_on_device else None

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

    async def gather(self, leg: str, kv_range: KvRange) -> memoryview:
        path = self._folder / f"computed-{leg}-{kv_range.token_begin}"
        if not path.exists():
            raise KeyError(leg)
        return memoryview(path.read_bytes())

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: memoryview) -> None:
        (self._folder / f"written-{key.request_id}-{kv_range.token_begin}").write_bytes(payload)

    async def pack(self, leg: str, kv_range: KvRange) -> tuple[DevicePayload, int]:
        payload = await self.gather(leg, kv_range)
        return span_of(np.frombuffer(payload, dtype=np.uint8), payload), checksum(payload)

    async def unpack(self, key: RequestKey, kv_range: KvRange, payload: DevicePayload) -> int:
        seen = payload.to_host()
        await self.scatter(key, kv_range, seen)
        return checksum(seen)


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
    """Of the product, or one that stands for what needs a GPU. Rings are a decode worker's, senders of ``role``."""
    name, settings = options["transport"], settings_of(options)
    directory, timeout_s = settings.shm_directory, settings.gloo.timeout_s

    def tls(role: PeerRole) -> TlsContexts | None:
        folder = options["certificates"]
        return TlsContexts(CertificateFolder(Path(folder)).files(role)) if folder else None

    if name == OrderedGloo.name:
        return PortTransport(
            rings=lambda: OrderedRings(settings.staging, settings.gloo, OrderedGloo(settings.gloo)),
            sender=lambda: OrderedSender(settings.gloo, OrderedGloo(settings.gloo)),
        )
    if name == SEGMENTS:
        return PortTransport(
            rings=lambda: rings_over(directory, settings.staging, timeout_s),
            sender=lambda: sender_over(directory, timeout_s),
            is_on_device=True,
        )
    return PortTransport(
        rings=lambda: make_rings(name, settings, hub=hub, tls=tls(PeerRole.DECODE_WORKER)),
        sender=lambda: make_sender(name, settings, hub=hub, tls=tls(role)),
    )


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
