"""Messages to an engine process: every method has types, every error comes back, nothing else can be built."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from stratos.common.error_codes import error_classes
from stratos.common.errors import BadRequest, Internal, StratosError
from stratos.core.kv import BlockLedger, DiskLedger, HostLedger, KvRange
from stratos.core.requests.embedding import EmbeddingOutput, EmbedRequest, PoolingKind
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.pins import PinnedSpan
from stratos.core.requests.records import (
    ChoiceOutput,
    ChoiceState,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    PrefillJob,
    RequestKey,
    TokenLogprob,
)
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.engine.contract.results import (
    AuditCounts,
    BlockReservation,
    CostErrors,
    DiskTierStatus,
    DraftCount,
    EngineStatus,
    HostTierStatus,
    PrefillEvent,
    PrefillEventKind,
    RequestStats,
    StateStatus,
    StepResult,
    StepShares,
    TierPinStatus,
)
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.transfer import FrameArrived, FrameHeader, PortEvent, RingBroken, TransportOffer
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.wire import (
    METHODS,
    PORT,
    Call,
    Failure,
    FromEngine,
    Happened,
    Stepped,
    decode,
    encode,
)
from tests.support.worlds.terms import make_terms


def test_every_method_of_the_client_has_types() -> None:
    local = {"start", "close", "subscribe", "unsubscribe", "status", "wait_failed"}
    methods = {name for name in vars(EngineClient) if not name.startswith("_")} - local
    port = {PORT + name for name in vars(DataPort) if not name.startswith("_")} - {PORT + "subscribe", PORT + "close"}
    assert set(METHODS) == methods | port


FRAME = FrameHeader(
    leg="leg-1", seq=3, kv_group="draft", kv_range=KvRange(1, 2, 3, 4), head_begin=1, head_end=2,
    num_bytes=5, checksum=2**64 - 1, slot=6, pair_seq=7,
)  # fmt: skip
OFFER = TransportOffer(transport="shm", pair="a>b#1", address="kv", slot_bytes=1, num_slots=2)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("open_ring", ("shm", "a>b#1")),
        ("announce_frame", ("a>b#1", FRAME)),
        ("receive", ("a>b#1", RequestKey("r", 7), FRAME)),
        ("connect", (OFFER,)),
        ("gather", ("shm", "leg-1", KvRange(1, 2, 3, 4))),
        ("send", ("shm", "a>b#1", FRAME)),
    ],
)
def test_calls_of_the_port_come_as_they_were_made(method: str, arguments: tuple[Any, ...]) -> None:
    assert decode(encode(arguments), METHODS[PORT + method][0]) == arguments


@pytest.mark.parametrize(
    "event", [FrameArrived(pair="a>b#1", leg="leg-1", seq=2), RingBroken(pair="a>b#1", why="its source is gone")]
)
def test_events_of_the_port_come_as_what_they_are(event: PortEvent) -> None:
    message = Happened(arrived=event) if isinstance(event, FrameArrived) else Happened(broken=event)
    back = decode(encode(message), FromEngine)
    assert (back.arrived or back.broken) == event


def names_of(record: type) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


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


OUTPUT = TokenLogprob(token_id=3, logprob=-0.25, rank=2)
LOGPROBS = PositionLogprobs(sampled=OUTPUT, top=(OUTPUT, TokenLogprob(9, -1.5, 1)))
KEY = RequestKey("r", 7)
SAMPLING = SamplingParams(
    temperature=0.5,
    top_p=0.75,
    top_k=5,
    min_p=0.125,
    repetition_penalty=1.5,
    frequency_penalty=0.5,
    presence_penalty=-0.5,
    logit_bias={4: -1.5},
    max_tokens=77,
    min_tokens=3,
    ignore_eos=True,
    drafts_off=True,
    stop_token_ids=(1, 2),
    allowed_token_ids=(3, 4),
    bad_sequences=((5, 6), (7,)),
    grammar=GrammarSpec(GrammarKind.CHOICE, '["a"]'),
    watermark=Watermark(key=b"k" * 16, gamma=0.5, delta=1.0, num_context_tokens=2),
    num_logprobs=2,
    num_prompt_logprobs=1,
)
TERMS = make_terms(
    adapter_digest="a" * 64,
    adapter_uri="adapters/a",
    cache_salt=b"\x00\xff",
    tenant="t",
    priority_class=2,
    arrival_s=12.5,
    deadline_s=99.25,
)
RECORDS: dict[str, list[object]] = {
    "arguments": [
        EngineRequest(
            key=KEY,
            prompt_ids=(1, 2, 3),
            choices=(ChoiceState(index=0, emitted_ids=(4,), finished=True), ChoiceState(index=2)),
            sampling=SAMPLING,
            seed=2**64 - 1,
            terms=TERMS,
            num_prior_tokens=1,
        ),
        EmbedRequest(
            key=KEY,
            token_ids=(1, 2),
            pooling=PoolingKind.MEAN,
            normalizes=False,
            num_dimensions=8,
            terms=TERMS,
        ),
        PrefillJob(leg="leg", token_ids=(1, 2), compute=False, terms=TERMS, receiver="r-1"),
        GrammarSpec(GrammarKind.LARK, "start: X"),
    ],
    "results": [
        StepResult(
            step=5,
            shares=StepShares(tenants={"t": 4}, requests={RequestKey("r", 1): 3}, legs={"leg": 1}, num_tokens=4),
            num_rows=2,
            drafts=[DraftCount(key=KEY, method="ngram", num_drafted=3, num_accepted=2, num_cut=1)],
            draft_cost_s=0.5,
            draft_saved_s=0.75,
            began_s=1.5,
            ended_s=2.5,
            idle_ns=7,
            work_ns=8,
            is_idle=True,
            outputs=[ChoiceOutput(KEY, 1, 6, [7, 8], [LOGPROBS], FinishReason.GRAMMAR)],
            embeddings=[EmbeddingOutput(key=KEY, values=b"\x00\x01", num_cached_tokens=4)],
            prefill_events=[PrefillEvent(kind=PrefillEventKind.CHUNK, leg="leg", num_tokens=3)],
            started_stats={
                KEY: RequestStats(
                    **dict.fromkeys(names_of(RequestStats), 9) | {"pinned_spans": (PinnedSpan(16, 32, 300),)}
                )
            },
            prompt_logprobs={KEY: (LOGPROBS,)},
            damaged={KEY: [b"\x00\xff"]},
        ),
        BlockReservation(key=KEY, num_skip_tokens=16, num_tokens=20),
        EngineStatus(
            **{name: 3 for name in names_of(EngineStatus) if name.startswith("num_") or name == "step"},
            is_computing=True,
            blocks=BlockLedger(**dict.fromkeys(names_of(BlockLedger), 2)),
            resident_adapters=("a" * 64,),
            p90_output_tokens=7,
            last_cache_change=5,
            kv_watermark=0.9,
            slow_step_s=0.5,
            waiting_by_class={1: 3},
            audits=AuditCounts(3, 1),
            cost_errors=CostErrors(0.1, 0.5),
            pins={"device": TierPinStatus(num_blocks=3, dropped={"quota": 1})},
            states=StateStatus(num_slots=9, num_available=4, num_snapshots=2),
            load_ratios=(0.25, 0.5),
            disk=DiskTierStatus(
                blocks=DiskLedger(**dict.fromkeys(names_of(DiskLedger), 2)),
                not_kept={"late": 1},
                not_loaded={"slow": 2},
                dropped={"quota": 3},
                **{name: 4 for name in names_of(DiskTierStatus) if name.startswith("num_") or name == "block_bytes"},
            ),
            host=HostTierStatus(
                slots=HostLedger(**dict.fromkeys(names_of(HostLedger), 2)),
                **{name: 4 for name in names_of(HostTierStatus) if name != "slots"},
            ),
        ),
    ],
}


@pytest.mark.parametrize("record", [r for part in RECORDS.values() for r in part], ids=lambda r: type(r).__name__)
def test_every_field_of_a_record_arrives(record: object) -> None:
    assert decode(encode(record), type(record)) == record


@pytest.mark.parametrize(
    "record", [*RECORDS["arguments"], SAMPLING, *RECORDS["results"]], ids=lambda r: type(r).__name__
)
def test_the_records_above_leave_out_no_field(record: Any) -> None:
    for field in dataclasses.fields(record):
        default = field.default_factory() if callable(field.default_factory) else field.default
        exempt = isinstance(record, StepResult) and field.name.endswith("errors")  # have a test of their own
        assert getattr(record, field.name) != default or exempt, f"{field.name} has its default"


def test_an_object_that_is_no_record_cannot_be_sent() -> None:
    with pytest.raises(NotImplementedError):
        encode(StepResult(step=1, outputs=[object()]))  # type: ignore[list-item]
