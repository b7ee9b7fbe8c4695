"""Transport by NCCL, between GPU pools: one communicator per pair, made when the first frame is announced.

Payloads are host memory in this contract: a frame is copied to the device, sent, and copied back into its slot there.
NCCL refuses two ranks on one device of one host, and neither encrypts nor authenticates.

Numbering, ends and faults are proved over Gloo with one tag for all frames, which pairs operations by their order as
NCCL does.
"""

from __future__ import annotations

import importlib
from typing import Any

from stratos.kv_transfer.groups.nccl_comm import NcclComm, load_nccl, make_id
from stratos.kv_transfer.groups.rendezvous import peer_of
from stratos.kv_transfer.settings import NcclConfig


def find_nccl_fault() -> str:
    """Why NCCL cannot work in this process, or nothing; imports torch, which loads NCCL."""
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

    def __init__(self, config: NcclConfig) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._config = config

    def memory(self, num_bytes: int) -> memoryview:
        """Page-locked, so that copies to and from the device need no other one."""
        pinned = self._torch.empty(num_bytes, dtype=self._torch.uint8, pin_memory=True)
        return memoryview(pinned.numpy()).cast("B")

    def join(self, store: Any, pair: str, rank: int) -> NcclGroup:
        """The communicator comes to be while the first frame waits for it, on both sides."""
        library, key = load_nccl(), f"{pair}/id"
        if rank == 0:
            store.set(key, make_id(library))
        unique_id = bytes(store.get(key))
        with self._torch.cuda.device(self._config.device):
            comm = NcclComm(library, unique_id, rank)
        return NcclGroup(self._torch, comm, peer_of(rank), self._config.device)


class NcclGroup:
    """One communicator, with a stream of its own."""

    def __init__(self, torch: Any, comm: NcclComm, peer: int, device: int) -> None:
        self._torch, self._comm, self._peer = torch, comm, peer
        self._device = torch.device("cuda", device)
        self._stream = torch.cuda.Stream(self._device)

    def receive(self, memory: memoryview) -> None:
        """Into the device, then into ``memory``."""
        host = self._torch.frombuffer(memory, dtype=self._torch.uint8)
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            staged = self._torch.empty(len(memory), dtype=self._torch.uint8, device=self._device)
            self._comm.receive(staged.data_ptr(), len(memory), self._peer, self._stream.cuda_stream)
            host.copy_(staged, non_blocking=True)
            self._finish()

    def send(self, memory: memoryview) -> None:
        """From ``memory`` into the device, then to the peer."""
        host = self._torch.frombuffer(bytearray(memory) if memory.readonly else memory, dtype=self._torch.uint8)
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            staged = host.to(self._device, non_blocking=True)
            self._comm.send(staged.data_ptr(), len(memory), self._peer, self._stream.cuda_stream)
            self._finish()

    def abort(self) -> None:
        """Kernels that wait for the peer end with it."""
        with self._torch.cuda.device(self._device):
            self._comm.abort()

    def _finish(self) -> None:
        event = self._torch.cuda.Event()
        event.record(self._stream)
        self._comm.wait(event.query)
