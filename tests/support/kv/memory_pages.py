"""Pages in the memory of a test: what it wrote for a leg is computed KV, what came for a request can be read."""

from __future__ import annotations

from stratos.core.device.payload import Payload, host_view
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey


class MemoryPages:
    """Payloads by leg, and by request, of one frame each."""

    has_device_pages = False

    def __init__(self) -> None:
        self.computed: dict[str, bytes] = {}
        """By leg."""
        self.written: dict[RequestKey, bytes] = {}

    async def gather(self, leg: str, kv_range: KvRange, *, on_device: bool) -> tuple[Payload, int | None]:
        return memoryview(self.computed[leg]), None

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: Payload) -> int | None:
        self.written[key] = bytes(host_view(payload))
        return None
