"""Transport by NCCL, between GPU pools: one communicator per pair, made when the first frame is announced.

Payloads are host memory in this contract: a frame is copied to the device, sent, and copied back into its slot there.
NCCL refuses two ranks on one device of one host, and neither encrypts nor authenticates.

Numbering, ends and faults are proved over Gloo with one tag for all frames, which pairs operations by their order as
NCCL does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import MutableMapping
from typing import Any

from stratos.kv_transfer.groups.rendezvous import peer_of
from stratos.kv_transfer.settings import NcclConfig

_ONE_TAG = 0


NO_WATCHDOG = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Torch ends the whole process when a peer is lost or late, unless its environment says so; a lost peer costs a pair.
"""


def find_nccl_fault() -> str:
    """Why NCCL cannot work in this process, or nothing; imports torch."""
    try:
        torch: Any = importlib.import_module("torch")
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError:
        return "nccl needs torch"
    if torch.cuda.is_available() and distributed.is_nccl_available():
        return ""
    return "nccl needs a GPU and torch with NCCL; take it out of transport.names"


class NcclGroups:
    """Groups over the device of this process."""

    name = "nccl"

    def __init__(self, config: NcclConfig, environment: MutableMapping[str, str] = os.environ) -> None:
        for name, value in NO_WATCHDOG.items():
            environment.setdefault(name, value)
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self._config = config

    def memory(self, num_bytes: int) -> memoryview:
        """Page-locked, so that copies to and from the device need no other one."""
        pinned = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        return memoryview(pinned.numpy()).cast("B")

    def join(self, store: Any, pair: str, rank: int) -> NcclGroup:
        """The communicator itself is made by the first frame, on both sides."""
        options = self._dist.ProcessGroupNCCL.Options()
        options._timeout = self._config.timeout
        group = self._dist.ProcessGroupNCCL(self._dist.PrefixStore(pair, store), rank, 2, options)
        return NcclGroup(self._torch, group, peer_of(rank), self._config.device)


class NcclGroup:
    """One communicator, with a stream of its own."""

    def __init__(self, torch: Any, group: Any, peer: int, device: int) -> None:
        self._torch, self._group, self._peer = torch, group, peer
        self._device = torch.device("cuda", device)
        self._stream = torch.cuda.Stream(self._device)

    def receive(self, memory: memoryview) -> None:
        """Into the device, then into ``memory``."""
        host = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            staged = self._torch.empty(len(memory), dtype=self._torch.uint8, device=self._device)
            self._group.recv([staged], self._peer, _ONE_TAG).wait()
            host.copy_(staged, non_blocking=True)
        self._stream.synchronize()

    def send(self, memory: memoryview) -> None:
        """From ``memory`` into the device, then to the peer."""
        host = self._torch.frombuffer(bytearray(memory) if memory.readonly else memory, dtype=self._torch.uint8)
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            staged = host.to(self._device, non_blocking=True)
            self._group.send([staged], self._peer, _ONE_TAG).wait()
        self._stream.synchronize()

    def abort(self) -> None:
        """Kernels that wait for the peer end with it."""
        self._group.abort()
