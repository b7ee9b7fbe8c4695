"""A real model with both engine clients: the same bits for every feature, and KV that moves between the two."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.kv import KvRange
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import EngineRequest, PrefillJob, RequestKey
from stratos.core.requests.watermark import Watermark
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.kv_transfer.settings import TransportConfig
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.service import make_client
from stratos.worker.settings import AdapterCacheConfig, WorkerSettings
from tests.support.kv.port_ends import STAGING, move_kv
from tests.support.paths import MODELS
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.engine_clients import Outputs, ended, events, make_request
from tests.support.worlds.terms import with_terms

FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"num_logprobs": 2},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "num_logprobs": 0},
    "penalised": {"temperature": 0.7, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "biased": {"logit_bias": {30: 5.0}, "allowed_token_ids": tuple(range(20, 60)), "bad_sequences": ((31,), (32, 33))},
    "marked": {"temperature": 1.0, "watermark": Watermark(key=b"k" * 16, delta=6.0)},
    "scored": {"num_prompt_logprobs": 2, "num_logprobs": 1},
    "grammar": {"temperature": 0.8, "grammar": GrammarSpec(GrammarKind.REGEX, "[a-z]{5}-[0-9]{3}")},
}


@functools.cache
def adapters() -> dict[str, AdapterFiles]:
    return {folder.name: read_adapter_files(folder) for folder in sorted((MODELS / "adapters").iterdir())}


def prompt() -> list[int]:
    return shipped_tokenizer().encode("def read_lines(path):\n    with open(path) as file:\n        return ")


def settings_of(kind: str, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(
        engine="torch",
        engine_process=kind,  # type: ignore[arg-type]
        runner=RunnerConfig(
            model_path=MODELS / "base",
            kv_pool_bytes=4 * 1024 * 1024,
            host_pool_bytes=1024 * 1024,
            max_resident_adapters=2,
            num_threads=1,
        ),
        scheduler=SchedulerConfig(max_num_batched_tokens=16),
        adapter_cache=AdapterCacheConfig(directory=tmp_path / kind),
        transport=TransportConfig(names=("shm",), shm_directory=tmp_path / "shm", staging=STAGING),
    )


@dataclasses.dataclass
class Side:
    """One client and what its engine said."""

    client: EngineClient
    outputs: Outputs

    async def run(self, request: EngineRequest) -> None:
        await self.client.add(request)
        await eventually(lambda: request.key.request_id in ended(self.outputs))

    def said(self, name: str) -> list[Any]:
        """Everything about one request."""
        found: list[Any] = []
        for result in self.outputs.results:
            found += [
                (o.index, o.token_ids, o.logprobs, o.finish_reason) for o in result.outputs if o.key.request_id == name
            ]
            found += [entries for key, entries in result.prompt_logprobs.items() if key.request_id == name]
        return found


@pytest.fixture(scope="module")
def sides_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture
async def sides(sides_dir: Path) -> AsyncIterator[tuple[Side, Side]]:
    clients = [make_client(settings_of(kind, sides_dir)) for kind in ("thread", "process")]
    await asyncio.gather(*(client.start() for client in clients))
    yield Side(clients[0], Outputs(clients[0])), Side(clients[1], Outputs(clients[1]))
    for client in clients:
        await client.close()


def make(name: str, adapter: AdapterFiles | None = None, **params: Any) -> EngineRequest:
    request = dataclasses.replace(make_request(prompt(), name, **{"max_tokens": 12, **params}), seed=7)
    return request if adapter is None else with_terms(request, adapter_digest=adapter.digest)


@pytest.mark.slow
async def test_both_clients_of_a_model_say_the_same(sides: tuple[Side, Side]) -> None:
    for side in sides:
        await _say_everything(side)
    thread, process = sides
    assert thread.client.info == process.client.info
    names = [*FEATURES, *adapters()]
    for name in names:
        assert thread.said(name), name
        assert thread.said(name) == process.said(name), name
    assert len({tuple(thread.outputs.tokens[name, 0]) for name in names}) >= len(adapters()) + 4, (
        "features change tokens"
    )
    embeddings = [[e.values for e in side.outputs.collect(lambda r: r.embeddings)] for side in sides]
    assert embeddings[0] == embeddings[1]
    assert len(embeddings[0]) == 2
    status = process.client.status()
    assert status.host.slots.total > 0
    assert set(status.resident_adapters) == set(thread.client.status().resident_adapters)
    await _move_kv(thread, process, "to-process")
    await _move_kv(process, thread, "to-thread")


async def _say_everything(side: Side) -> None:
    for name, params in FEATURES.items():
        if "grammar" in params:
            await side.client.prepare_grammar(params["grammar"])
        await side.run(make(name, **params))
    for kind in PoolingKind:
        await side.client.add_embedding(
            EmbedRequest(key=RequestKey(f"embed-{kind}", 0), token_ids=tuple(prompt()), pooling=kind)
        )
    await eventually(lambda: len(side.outputs.collect(lambda r: r.embeddings)) == 2)
    first, *others = adapters().items()
    await side.client.load_adapter(first[1])
    assert await side.client.pin_adapter(first[1].digest)
    for name, files in [first, *others]:
        await side.client.load_adapter(files)  # two slots: the last one that is not pinned makes room
        await side.run(make(name, files))
    assert set(side.client.status().resident_adapters) == {first[1].digest, others[-1][1].digest}
    assert not await side.client.pin_adapter(others[0][1].digest)
    await side.client.unpin_adapter(first[1].digest)


async def _move_kv(source: Side, target: Side, name: str) -> None:
    """A hand-off from one kind of engine into the other one gives what either computes alone."""
    salt = name.encode()
    request = with_terms(make(name, num_logprobs=2), cache_salt=salt)
    num_tokens = len(prompt()) - 1
    await source.client.add_prefill(PrefillJob(leg=name, token_ids=tuple(prompt()[:-1]), terms=request.terms))
    await eventually(lambda: any(e.leg == name for e in events(source.outputs)))
    assert await target.client.reserve(request) is not None
    await source.client.grant(name)
    await eventually(lambda: [e.num_tokens for e in events(source.outputs) if e.leg == name][-1] == num_tokens)
    layers = target.client.info.geometry.num_layers
    for begin, end in ((0, 5), (5, num_tokens)):
        for layer in range(layers):
            kv_range = KvRange(begin, end, layer, layer + 1)
            await move_kv(source.client.data_port, target.client.data_port, name, request.key, kv_range)
    await target.client.commit(request.key)
    await source.client.release_prefill(name)
    await eventually(lambda: name in ended(target.outputs))
    assert target.said(name) == target.said("greedy")
