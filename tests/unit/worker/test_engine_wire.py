"""Messages to an engine process: every method has types, every error comes back, nothing else can be built."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from stratos.common.errors import BadRequest, Internal, StratosError, error_classes
from stratos.core.request import RequestKey
from stratos.engine.engine import StepResult
from stratos.worker.engine_client import EngineClient
from stratos.worker.engine_wire import METHODS, Call, Failure, FromEngine, Stepped, decode, encode
from stratos.worker.payload_arena import ALIGNMENT, PayloadArena, PayloadMemory


def test_every_method_of_the_client_has_types() -> None:
    local = {"start", "close", "subscribe", "status", "wait_failed"}
    assert set(METHODS) == EngineClient.__abstractmethods__ - local


@pytest.mark.parametrize("cls", sorted(set(error_classes().values()), key=lambda c: c.__name__))
def test_every_error_comes_back_as_itself(cls: type[StratosError]) -> None:
    error = cls("what happened")
    error.after_s, error.param = 2.5, "input" if issubclass(cls, BadRequest) else None
    result = StepResult(step=1, errors={RequestKey("r", 2): error}, prefill_errors={"leg": error})
    back = decode(encode(Stepped(result)), FromEngine).result
    for got in (back.errors[RequestKey("r", 2)], back.prefill_errors["leg"]):
        assert (type(got), got.message, got.code, got.param) == (cls, error.message, error.code, error.param)
        assert got.http_status == error.http_status


def test_an_error_with_a_code_of_its_own_keeps_it() -> None:
    back = Failure.of(BadRequest("no", param="model", code="unsupported_operation")).exception()
    assert isinstance(back, BadRequest)
    assert (back.code, back.param, back.http_status) == ("unsupported_operation", "model", 400)


def test_other_exceptions_keep_their_class_only_if_the_contract_names_it() -> None:
    assert isinstance(Failure.of(KeyError("leg")).exception(), KeyError)
    assert isinstance(Failure.of(ValueError("tokens")).exception(), ValueError)
    strange = Failure.of(ZeroDivisionError("x")).exception()
    assert type(strange) is RuntimeError
    assert "ZeroDivisionError" in str(strange)
    result = decode(encode(StepResult(step=1, errors={RequestKey("r", 0): Internal("x")})), StepResult)
    assert isinstance(result.errors[RequestKey("r", 0)], Internal)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", encode({"type": "Nonsense"}), encode(Call(1, "add", msgspec.Raw(b"\xc0")))]
)
def test_what_is_not_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data, FromEngine)
    with pytest.raises(msgspec.DecodeError):
        decode(data, METHODS["add"][0])


def test_an_object_that_is_no_record_cannot_be_sent() -> None:
    with pytest.raises(NotImplementedError):
        encode(StepResult(step=1, outputs=[object()]))  # type: ignore[list-item]


async def test_places_of_the_arena_never_overlap_and_all_come_back() -> None:
    draw = random.Random(5)
    memory = PayloadMemory.create(64 * ALIGNMENT)
    arena = PayloadArena(memory)
    held: list[tuple[int, int]] = []

    async def use(size: int) -> None:
        offset = await arena.take(size)
        assert all(offset + size <= o or o + s <= offset for o, s in held)
        held.append((offset, size))
        try:
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
        finally:
            held.remove((offset, size))
            arena.give_back(offset, size)

    tasks = [asyncio.create_task(use(draw.randrange(1, 40 * ALIGNMENT))) for _ in range(300)]
    for task in draw.sample(tasks, 60):
        asyncio.get_running_loop().call_soon(task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    assert arena.num_free_bytes == memory.num_bytes
    with pytest.raises(ValueError, match="does not fit"):
        await arena.take(64 * ALIGNMENT + 1)
    with pytest.raises(ValueError, match="outside"):
        memory.view(0, memory.num_bytes + 1)
    memory.close()


async def test_a_waiter_that_gives_up_lets_the_next_one_in() -> None:
    memory = PayloadMemory.create(4 * ALIGNMENT)
    arena = PayloadArena(memory)
    first = await arena.take(4 * ALIGNMENT)
    waiting = [asyncio.create_task(arena.take(ALIGNMENT)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    arena.give_back(first, 4 * ALIGNMENT)
    assert len({await waiting[1], await waiting[2]}) == 2
    assert arena.num_free_bytes == 2 * ALIGNMENT
    memory.close()
