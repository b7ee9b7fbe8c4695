"""Groups that pair operations by order on CPUs: Gloo with one tag for all frames, where NCCL has none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stratos.kv_transfer.groups.gloo import GlooTorch
from stratos.kv_transfer.groups.rendezvous import peer_of
from stratos.kv_transfer.settings import GlooConfig

_ONE_TAG = 0


class OrderedGloo:
    """Makes them."""

    name = "ordered-gloo"

    def __init__(self, config: GlooConfig) -> None:
        self._torch, self._config = GlooTorch(config), config

    def memory(self, num_bytes: int) -> memoryview:
        return memoryview(bytearray(num_bytes))

    def join(self, store: Any, pair: str, rank: int) -> OrderedGlooGroup:
        group = self._torch.join(store, pair, rank)
        return OrderedGlooGroup(self._torch, group, peer_of(rank), self._config.timeout)


class OrderedGlooGroup:
    """Two ranks and one tag."""

    def __init__(self, torch: GlooTorch, group: Any, peer: int, timeout: timedelta) -> None:
        self._torch, self._group, self._peer, self._timeout = torch, group, peer, timeout

    def receive(self, memory: memoryview) -> None:
        self._group.recv([self._torch.tensor(memory)], self._peer, _ONE_TAG).wait(self._timeout)

    def send(self, memory: memoryview) -> None:
        data = bytearray(memory) if memory.readonly else memory
        self._group.send([self._torch.tensor(data)], self._peer, _ONE_TAG).wait(self._timeout)

    def abort(self) -> None:
        self._torch.break_group(self._group, self._peer)
