"""Models on real processes: two gateways and two routers serve two from their start, and one that comes and goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from stratos.store.local_store import LocalStore
from stratos.store.registry.catalogue import manifest_key
from tests.integration.platform.models.calls import admin_key, client_of, pids_of, refused, stratos
from tests.integration.platform.models.conftest import CONTEXT
from tests.support.reference.published_models import published
from tests.support.reference.second_model import save_second_model
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import PlatformProcess

NAMES = ("base", "small")
COMPARED = 40
NUM_STREAMS = 4
"""Streams of each of three waves, the first of which run over a switch and a way back."""


async def test_each_request_runs_on_a_worker_of_the_model_that_it_names(platform: PlatformProcess) -> None:
    async with client_of(platform) as client:
        listed = (await client.get("/models")).json()["data"]
        assert tuple(entry["id"] for entry in listed if entry["parent"] is None) == NAMES
        assert len({entry["revision"] for entry in listed}) == 2
        workers = {}
        for number in range(6):
            name = NAMES[number % 2]
            answer = await client.post("/completions", json={"model": name, "prompt": [5, 6], "max_tokens": 3})
            assert (answer.status_code, answer.json()["model"]) == (200, name), answer.text
            workers[name] = await worker_of(client, answer.headers["x-request-id"])
        assert workers == {"base": "decode-0", "small": "decode-small-0"}
        refusal = await client.post("/completions", json={"model": "other", "prompt": [5]})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_model_comes_and_goes_while_its_neighbour_streams(platform: PlatformProcess, tmp_path: Path) -> None:
    third = save_second_model(tmp_path / "third")
    admin = ("--key", await admin_key(platform))
    pids = await pids_of(platform)
    ask = {"model": "base", "prompt": [5, 6], "max_tokens": 4000, "ignore_eos": True, "return_token_ids": True}
    async with (
        client_of(platform) as client,
        client.stream("POST", "/completions", json={**ask, "stream": True}) as stream,
    ):
        streamed: list[int] = []
        reader = asyncio.create_task(collect(stream, streamed))
        await eventually(lambda: streamed, "the neighbour streams")
        added = await stratos(platform, "models", "add", "third", str(third), "--wait-s", "100", *admin)
        assert "third is served" in added
        for _ in range(4):  # whichever gateway takes the connection
            answer = await client.post(
                "/completions", json={"model": "third", "prompt": [5], "max_tokens": 2}, headers={"connection": "close"}
            )
            assert answer.status_code == 200, answer.text
            assert (await worker_of(client, answer.headers["x-request-id"])).startswith("decode-third-")
        [row] = json.loads(await stratos(platform, "models", "show", "third", *admin))
        assert (row["state"], row["current"], row["workers"]) == ("serving", True, {"prefill": 0, "decode": 1})
        assert "third is removed" in (await stratos(platform, "models", "remove", "third", *admin)).replace(
            f", digest {row['digest']},", ""
        )
        await eventually(lambda: _has(platform, pids), "its worker has left")
        refusal = await client.post("/completions", json={"model": "third", "prompt": [5]})
        assert refusal.status_code == 404
        num_streamed = len(streamed)
        await eventually(lambda: reader.done() or len(streamed) > num_streamed + COMPARED, "the neighbour goes on")
        whole = await client.post("/completions", json={**ask, "max_tokens": COMPARED})
        assert whole.json()["choices"][0]["token_ids"] == streamed[:COMPARED]
        reader.cancel()
    async with client_of(platform) as client:
        assert await worker_of(client, stream.headers["x-request-id"]) == "decode-0"
    assert await pids_of(platform) == pids  # nothing was started again
    assert "third" not in await stratos(platform, "models", "list", *admin)


@pytest.mark.slow
async def test_a_published_model_is_served_by_reference_and_one_that_is_not_whole_is_refused(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    admin, pids = ("--key", await admin_key(platform)), await pids_of(platform)
    objects = Path(platform.facts()["object_store_url"].removeprefix("file://"))
    made = await published(LocalStore(objects), save_second_model(tmp_path / "third"), "org/third")
    manifest = objects / manifest_key("org/third", made.manifest.digest, made.manifest_digest)
    content = manifest.read_bytes()
    add = ("models", "add", "third", made.reference[:30], "--wait-s", "100", *admin)
    for altered, message in ((content[:-9] + b"1" + content[-8:], "was altered"), (b"", "was altered")):
        manifest.write_bytes(altered)
        assert message in await refused(platform, *add)
    manifest.unlink()
    assert "is not published, or was not to its end" in await refused(platform, *add)
    manifest.write_bytes(content)
    assert "third is served" in await stratos(platform, *add)
    [row] = json.loads(await stratos(platform, "models", "show", "third", *admin))
    assert (row["source"], row["ready"], row["facts"]["precision"]) == (made.reference, "1/1", "BF16")
    async with client_of(platform) as client:
        for _ in range(4):  # whichever gateway takes the connection
            answer = await client.post(
                "/completions", json={"model": "third", "prompt": [5], "max_tokens": 2}, headers={"connection": "close"}
            )
            assert answer.status_code == 200, answer.text
            assert (await worker_of(client, answer.headers["x-request-id"])).startswith("decode-third-")
    await stratos(platform, "models", "remove", "third", *admin)
    await eventually(lambda: _has(platform, pids), "its worker has left")


@pytest.mark.slow
async def test_streams_stay_on_their_revision_over_a_switch_and_a_rollback(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    admin, pids = ("--key", await admin_key(platform)), await pids_of(platform)
    [row] = json.loads(await stratos(platform, "models", "show", "small", *admin))
    old = row["digest"]
    await stratos(platform, "models", "alias", "small@live", f"small@{old[:12]}", *admin)
    folder = save_second_model(tmp_path / "second")
    await stratos(platform, "models", "add", "small", str(folder), "--wait-s", "100", *admin)
    rows = json.loads(await stratos(platform, "models", "show", "small", *admin))
    [new] = [row["digest"] for row in rows if row["digest"] != old]
    streams: list[_Stream] = []
    for digest in (old, new, old):
        await stratos(platform, "models", "alias", "small@live", f"small@{digest[:12]}", *admin)
        await eventually(partial(_stands_for, platform, pids, digest), "every gateway knows it")
        assert not any(stream.task.done() for stream in streams[:NUM_STREAMS])  # they run over the switch, and back
        begun = [_Stream(platform, digest) for _ in range(NUM_STREAMS)]
        streams += begun
        await eventually(lambda begun=begun: all(s.found or s.task.done() for s in begun), "all of a wave stream")
    counts = [len(stream.found) for stream in streams]
    goes_on = partial(zip, streams, counts, strict=True)
    await eventually(lambda: all(len(s.found) > count or s.task.done() for s, count in goes_on()), "all go on")
    assert [s.task.exception() for s in streams if s.task.done() and s.task.exception() is not None] == []
    for digest in (old, new):
        alike = [stream.found for stream in streams if stream.digest == digest]
        longest = max(alike, key=len)
        assert all(found == longest[: len(found)] for found in alike)
    assert longest[:COMPARED] != streams[0].found[:COMPARED]  # a token tells of which model it is
    for stream in streams:
        stream.task.cancel()
    workers = {old: "decode-small-0", new: f"decode-small-{new[:8]}-0"}
    async with client_of(platform) as client:
        for stream in streams:  # one worker, from the first token to the last one
            assert await worker_of(client, stream.request_id) == workers[stream.digest]
    await stratos(platform, "models", "unalias", "small@live", *admin)
    await stratos(platform, "models", "remove", "small", "--digest", new, *admin)
    await eventually(lambda: _has(platform, pids), "the workers of the revision that is gone have left")


class _Stream:
    """One that runs on a connection of its own, and the revision that it must be of."""

    def __init__(self, platform: PlatformProcess, digest: str) -> None:
        self.digest, self.request_id, self.found = digest, "", list[int]()
        self.task = asyncio.create_task(self._run(platform))

    async def _run(self, platform: PlatformProcess) -> None:
        ask = {"model": "small@live", "prompt": [5, 6], "max_tokens": CONTEXT - 2, "ignore_eos": True, "stream": True}
        async with (
            client_of(platform) as client,
            client.stream("POST", "/completions", json={**ask, "return_token_ids": True}) as stream,
        ):
            self.request_id = stream.headers["x-request-id"]
            await collect(stream, self.found)


async def _stands_for(platform: PlatformProcess, pids: Mapping[str, int], digest: str) -> bool:
    """Whether requests for the alias get this revision now, at each gateway; they share one port."""
    gateways = [psutil.Process(pid) for name, pid in pids.items() if name.startswith("gateway-")]
    found = dict[int, str]()
    while len(found) < len(gateways):
        async with client_of(platform) as client:
            answer = await client.get("/models/small@live")
            end = answer.extensions["network_stream"].get_extra_info("client_addr")
            [gateway] = [one for one in gateways if end in {c.raddr for c in one.net_connections("tcp")}]
            found[gateway.pid] = answer.json().get("revision")
    return set(found.values()) == {digest}


async def _has(platform: PlatformProcess, names: Iterable[str]) -> bool:
    return set(await pids_of(platform)) == set(names)


async def collect(stream: httpx.Response, found: list[int]) -> None:
    """Add the ids of a stream to ``found`` as they come."""
    async for line in stream.aiter_lines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            found += [token for choice in event["choices"] for token in choice["token_ids"]]


async def worker_of(client: httpx.AsyncClient, request_id: str) -> str:
    """The worker that ran a request, as its receipt says."""
    found: list[str] = []

    async def is_there() -> bool:
        answer = await client.get(f"/requests/{request_id}/receipt")
        if answer.status_code == 200:
            [attempt] = answer.json()["generations"][0]["attempts"]  # no worker was lost on the way
            found.append(attempt["worker"])
        return bool(found)

    await eventually(is_there, "the receipt is written")
    return found[0]


async def test_the_next_model_of_a_chain_answers_where_one_has_no_worker(
    platform: PlatformProcess, crashing: Path
) -> None:
    """The workers of "dead" die as they load it."""
    admin = ("--key", await admin_key(platform))
    await stratos(platform, "models", "add", "dead", str(crashing), *admin)
    ask = {"models": ["dead", "small"], "prompt": [5, 6], "max_tokens": 3}
    async with client_of(platform) as client:
        for stream in (False, True):
            answer = await client.post(
                "/completions", json={**ask, "stream": stream}, headers={"connection": "close"}, timeout=LIMIT_S
            )
            assert (answer.status_code, answer.headers["x-stratos-model"]) == (200, "small"), answer.text
            assert answer.headers["x-stratos-model-refused"] == "dead=wait_too_long"
            assert await worker_of(client, answer.headers["x-request-id"]) == "decode-small-0"
    await stratos(platform, "models", "remove", "dead", *admin)


async def test_rules_that_people_write_choose_among_the_models_of_a_platform(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    rules = {"default": "small", "rules": [{"name": "code", "keywords": ["python"], "models": ["base"]}]}
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    admin = ("--key", await admin_key(platform))
    await stratos(platform, "models", "auto", "--rules", str(tmp_path / "rules.json"), *admin)
    async with client_of(platform) as client:
        await eventually(lambda: _is_listed(client, "auto"), "the gateway has read them")
        for prompt, model, rule in (("python", "base", "code"), ("tea", "small", "default")):
            answer = await client.post("/completions", json={"model": "auto", "prompt": prompt, "max_tokens": 3})
            assert (answer.status_code, answer.json()["model"]) == (200, model), answer.text
            assert answer.headers["x-stratos-model-rule"] == rule
    await stratos(platform, "models", "auto", "--remove", *admin)


async def _is_listed(client: httpx.AsyncClient, name: str) -> bool:
    return name in [row["id"] for row in (await client.get("/models")).json()["data"]]


async def test_gateways_serve_a_model_of_140_gb_with_none_of_its_bytes(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    """Its weights are a hole in a file, so a process that reads them takes minutes and memory for zeros."""
    folder, admin = save_second_model(tmp_path / "huge"), ("--key", await admin_key(platform))
    weights = folder / "model.safetensors"
    weights.unlink()
    with weights.open("wb") as file:
        file.truncate(140 << 30)
    gateways = [psutil.Process(pid) for name, pid in (await pids_of(platform)).items() if name.startswith("gateway-")]
    before = [gateway.memory_info().rss for gateway in gateways]
    await stratos(platform, "models", "add", "huge", str(folder), "--digest", "a" * 64, *admin)
    async with client_of(platform) as client:
        await eventually(lambda: _is_listed(client, "huge"), "it is served")
    grown = [gateway.memory_info().rss - rss for gateway, rss in zip(gateways, before, strict=True)]
    assert max(grown) < 64 << 20, grown
    assert weights.stat().st_blocks == 0
    await stratos(platform, "models", "remove", "huge", *admin)
