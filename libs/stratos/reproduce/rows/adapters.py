"""Adapters of one base: bytes beside models of their own, and speed with 3 and 32 in a batch and 1,000 registered.

Registered adapters lie in files.  A batch's adapters are loaded before it runs, those that are resident already are
only marked as used, and the least recently used make room; the time of loading is in the figures of that load.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from stratos.calculators.formula import Formula
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.engine.core import EngineCore
from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.loaded import LoadedModel, large_model, load_model
from stratos.reproduce.material.random_model import write_adapter
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between, exactly
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.record.result import Cell, ResultPlot, ResultTable, RowResult

STREAMS, SLOTS, PROMPT_TOKENS = 32, 32, 32
RANK = 4
SAVED = Formula("saved_share", "1 - shared_devices / own_devices")
SHARE = Formula("share_of_base", "adapter_bytes / (parameters * 2)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLoad:
    """Which adapters the streams of each round use."""

    name: str
    rounds: Sequence[Sequence[AdapterFiles | None]]
    """An adapter for each stream, ``None`` for the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFigures:
    """One load."""

    tokens_per_s: float
    """Loading included."""
    loads_ms: Sequence[float]
    """Time of each adapter that was not resident."""


def measure(conditions: RowConditions) -> RowResult:
    """Bytes of the shipped adapters, and all loads."""
    num_registered, num_rounds, num_tokens = conditions.sized(smoke=(40, 2, 6), short=(1000, 6, 48), full=(1000, 6, 48))
    model = load_model(conditions, max_resident_adapters=SLOTS)
    registered = list(_registered(conditions, num_registered))
    shipped = [read_adapter_files(path) for path in sorted((conditions.model.parent / "adapters").iterdir())]
    base_bytes = (conditions.model / "model.safetensors").stat().st_size
    engine = model.engine(SchedulerConfig(max_num_seqs=STREAMS))
    _run(model, engine, AdapterLoad(name="warm-up", rounds=[[None] * STREAMS]), 2, conditions.seed)
    found = {}
    for load in _loads(registered, num_rounds, Random(conditions.seed)):
        found[load.name] = _run(model, engine, load, num_tokens, conditions.seed)
    base, mean_bytes = found["base alone"], statistics.fmean(files.num_bytes for files in shipped)
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("1.10", "10 variants on 4 devices in place of 40: 90 % saved", 0.9),
                recomputed=SAVED(shared_devices=4, own_devices=40),
                own=OwnFigure(
                    name="saved_bytes", value=1 - (base_bytes + 10 * mean_bytes) / (10 * base_bytes),
                    kind=FigureKind.CALCULATED, how="10 variants of the shipped model, adapters like the shipped ones",
                ),
            ),
            ClaimAnswer(
                claim=between("1.10", "an adapter of 700 MB is 1-5 % of a 70B base", 0.01, 0.05),
                recomputed=SHARE(adapter_bytes=700e6, parameters=70e9),
                own=OwnFigure(
                    name="share_of_base", value=mean_bytes / base_bytes, kind=FigureKind.CALCULATED,
                    how="shipped adapters of ranks 8, 16 and 32 on a base of 5.5 M parameters",
                ),
            ),
        ],
        tables=[
            ResultTable(
                title="Bytes of the shipped adapters", kind=FigureKind.CALCULATED,
                columns=("adapter", "rank", "adapter_bytes", "share_of_base"),
                rows=[
                    ("base", "-", base_bytes, 1.0),
                    *((each.path.name, each.rank, each.num_bytes, each.num_bytes / base_bytes) for each in shipped),
                ],
            ),
            ResultTable(
                title=f"{STREAMS} streams, {SLOTS} slots, adapters of rank {RANK}: {model.name}",
                kind=FigureKind.MEASURED,
                columns=("load", "tokens_per_s", "against_base", "loads", "load_p50_ms", "load_most_ms"),
                rows=[_table_row(name, one, base.tokens_per_s) for name, one in found.items()],
            ),
        ],
        plots=[
            ResultPlot(
                title="Time to load an adapter, in order", kind=FigureKind.MEASURED, x_label="load", y_label="ms",
                lines={name: list(enumerate(one.loads_ms)) for name, one in found.items() if len(one.loads_ms) > 1},
            )
        ],
        notes=[
            f"{num_registered} registered adapters are {_megabytes(registered):.4g} MB of files; "
            f"{SLOTS} of them have memory in the engine at a time."
        ],
    )  # fmt: skip


def _loads(registered: Sequence[AdapterFiles], num_rounds: int, rng: Random) -> Iterator[AdapterLoad]:
    weights = [1 / rank for rank in range(1, len(registered) + 1)]
    active = registered[:SLOTS]
    yield AdapterLoad(name="base alone", rounds=[[None] * STREAMS] * num_rounds)
    for count in (1, 3):
        streams = [registered[number % count] for number in range(STREAMS)]
        yield AdapterLoad(name=f"{count} active", rounds=[streams] * num_rounds)
    yield AdapterLoad(name=f"{SLOTS} active", rounds=[active] * num_rounds)
    skewed = [rng.choices(registered, weights, k=STREAMS) for _ in range(num_rounds)]
    yield AdapterLoad(name=f"{len(registered)} by Zipf's law", rounds=skewed)
    even = [rng.choices(registered, k=STREAMS) for _ in range(num_rounds)]
    yield AdapterLoad(name=f"{len(registered)} evenly", rounds=even)


def _run(model: LoadedModel, engine: EngineCore, load: AdapterLoad, num_tokens: int, seed: int) -> AdapterFigures:
    loads_ms: list[float] = []
    began_s, num_output = time.perf_counter(), 0
    for number, streams in enumerate(load.rounds):
        _make_resident(engine, {files.digest: files for files in streams if files is not None}, loads_ms)
        asks = [
            LoadAsk(
                num_prompt_tokens=PROMPT_TOKENS, num_output_tokens=num_tokens,
                adapter_digest="" if files is None else files.digest,
            )
            for files in streams
        ]  # fmt: skip
        num_output += model.run_on(engine, asks, seed=seed + number).num_output_tokens
    return AdapterFigures(tokens_per_s=num_output / (time.perf_counter() - began_s), loads_ms=loads_ms)


def _make_resident(engine: EngineCore, wanted: dict[str, AdapterFiles], loads_ms: list[float]) -> None:
    """Load a round's adapters; those that are resident come first, so that they are not the ones that make room."""
    resident = set(engine.runner.resident_adapters())
    for digest, files in sorted(wanted.items(), key=lambda item: item[0] not in resident):
        began_s = time.perf_counter()
        engine.load_adapter(files)
        if digest not in resident:
            loads_ms.append(1e3 * (time.perf_counter() - began_s))


def _registered(conditions: RowConditions, count: int) -> Iterator[AdapterFiles]:
    """Random adapters of the form's model, written once."""
    base = large_model(conditions) if conditions.form is RowForm.FULL else conditions.model
    shape = json.loads((base / "config.json").read_text(encoding="utf-8"))
    for number in range(count):
        folder = Path(conditions.folder, f"adapters-{shape['hidden_size']}", f"{number:04}")
        if not (folder / "adapter_config.json").is_file():  # written last
            write_adapter(shape, folder, RANK, number)
        yield read_adapter_files(folder)


def _table_row(name: str, found: AdapterFigures, base: float) -> tuple[Cell, ...]:
    loads = found.loads_ms or [0.0]
    speed = found.tokens_per_s
    return name, speed, speed / base, len(found.loads_ms), statistics.median(loads), max(loads)


def _megabytes(adapters: Sequence[AdapterFiles]) -> float:
    return sum(files.num_bytes for files in adapters) / 1e6
