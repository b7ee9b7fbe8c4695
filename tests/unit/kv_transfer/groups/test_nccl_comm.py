"""A communicator over a library that plays NCCL: it is made step by step, and what is lost ends it alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from stratos.kv_transfer.groups.nccl_comm import ID_BYTES, IN_PROGRESS, SUCCESS, NcclComm, make_id

REMOTE_ERROR = 6


class PlayedNccl:
    """States are answered in turn, the last one for ever."""

    def __init__(self, *states: int) -> None:
        self.states, self.calls = list(states), []
        self.on_ask: Callable[[], None] = lambda: None

    def ncclGetUniqueId(self, found: Any) -> int:
        found.contents.internal[0] = 7
        return SUCCESS

    def ncclCommInitRankConfig(self, comm: Any, num_ranks: int, unique_id: Any, rank: int, config: Any) -> int:
        comm.contents.value = 1
        self.calls.append(("init", num_ranks, bytes(unique_id)[0], rank, config.contents.blocking))
        return IN_PROGRESS

    def ncclCommGetAsyncError(self, comm: Any, state: Any) -> int:
        self.on_ask()
        state.contents.value = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return SUCCESS

    def ncclSend(self, *arguments: Any) -> int:
        self.calls.append(("send", *arguments[:4]))
        return IN_PROGRESS

    def ncclCommAbort(self, comm: Any) -> int:
        self.calls.append(("abort",))
        return SUCCESS

    def ncclGetErrorString(self, code: int) -> bytes:
        return b"remote process exited" if code == REMOTE_ERROR else b""


def test_it_is_waited_for_before_and_after_an_operation() -> None:
    library = PlayedNccl(IN_PROGRESS, IN_PROGRESS, SUCCESS)
    unique_id = make_id(library)
    assert len(unique_id) == ID_BYTES
    comm = NcclComm(library, unique_id, 1)
    comm.send(4096, 10, 0, 0)
    assert library.calls == [("init", 2, 7, 1, 0), ("send", 4096, 10, 1, 0)]


def test_a_lost_peer_ends_a_wait() -> None:
    comm = NcclComm(PlayedNccl(SUCCESS, IN_PROGRESS, REMOTE_ERROR), bytes(ID_BYTES), 0)
    with pytest.raises(RuntimeError, match="remote process exited"):
        comm.wait(lambda: False)


def test_another_thread_ends_a_wait_and_the_communicator_once() -> None:
    library, asked = PlayedNccl(IN_PROGRESS), threading.Event()
    library.on_ask = asked.set
    comm = NcclComm(library, bytes(ID_BYTES), 0)

    def end() -> None:
        asked.wait()
        comm.abort()
        comm.abort()

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(RuntimeError, match="was ended"):
        comm.wait(lambda: False)
    ending.join()
    with pytest.raises(RuntimeError, match="was ended"):
        comm.send(4096, 10, 1, 0)
    assert library.calls[1:] == [("abort",)]


def test_an_operation_that_ended_with_the_communicator_is_not_taken_for_done() -> None:
    comm = NcclComm(PlayedNccl(SUCCESS), bytes(ID_BYTES), 0)
    comm.abort()
    with pytest.raises(RuntimeError, match="was ended"):
        comm.wait(lambda: True)
