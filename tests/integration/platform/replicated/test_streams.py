"""Streams of all dialects, and background responses, while one of two gateways, real processes, is killed: clients that
come back have all of it, and each answer is billed once."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest

from stratos.cli.chaos.faults.fault import Fault
from stratos.core.ledger.entry import OWN_RANK, LedgerEntry, RequestOutcome
from tests.integration.platform.replicated.test_ledger import Ledger, check_sums, client_of, entries_of, ledger_of
from tests.support.chaos.places import OneProcess
from tests.support.waiting import eventually, rounds, while_running
from tests.support.worlds.platform_process import PlatformProcess
from tests.support.worlds.stream_world import Read, contents

NUM_TOKENS = 300
NUM_SHORT = 150
"""Tokens of the streams of a short form."""
SHORT_S = 2.5
"""Longer than a lease lasts."""
COMMON = {"model": "base", "stream": True, "temperature": 1.0, "seed": 3, "ignore_eos": True}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"messages": [{"role": "user", "content": "go"}], "max_tokens": NUM_TOKENS}),
    ("completions", {"prompt": ["go", "on"], "max_tokens": NUM_TOKENS}),
    ("responses", {"input": "go", "max_output_tokens": NUM_TOKENS}),
    ("messages", {"messages": [{"role": "user", "content": "go"}], "max_tokens": NUM_TOKENS}),
]
MOVED = '"code":"stream_moved"', '"code":"draining"'
"""In events that say that this gateway has the stream no more, or leaves; they have no ids."""


@dataclass
class Client:
    """One that comes back until its stream has ended."""

    name: str
    kind: int
    reads: list[Read] = field(default_factory=list)
    patience_s: float = 10.0
    """Time without a byte after which it comes back."""
    leaves_after: int = 0
    """Events after which it leaves a connection by itself, to come back at once; 0 stays."""
    num_tokens: int = NUM_TOKENS
    num_unanswered: int = 0
    """Tries of which it was not told whether they had a record."""
    num_refused: int = 0
    """How often a gateway said that it could not go on with it now."""

    @property
    def has_ended(self) -> bool:
        last = self.reads[-1].events[-1].text if self.reads and self.reads[-1].events else ""
        return any(end in last for end in ("[DONE]", "response.completed", "response.incomplete", "message_stop"))

    @property
    def num_events(self) -> int:
        return sum(len(found.events) for found in self.reads)

    @property
    def is_recorded(self) -> bool:
        """Each connection had a record: a gateway that had no time for its store says so, and answers without."""
        return not self.num_unanswered and all(found.stream != "none" for found in self.reads)

    async def run(self, http: httpx.AsyncClient) -> None:
        while not self.has_ended:
            try:
                await self._connect(http)
            except httpx.HTTPError:
                continue  # its gateway is gone

    async def _connect(self, http: httpx.AsyncClient) -> None:
        path, body = KINDS[self.kind]
        body = {name: self.num_tokens if value == NUM_TOKENS else value for name, value in body.items()}
        sent = {"idempotency-key": self.name, "x-request-id": self.name, "connection": "close"}
        if (last := next((found.last_id for found in reversed(self.reads) if found.last_id), "")) != "":
            sent["last-event-id"] = last
        common = {} if path in ("responses", "messages") else COMMON
        own = {"model": "base", "stream": True, "temperature": 1.0, **common, **body}
        self.num_unanswered += 1
        async with http.stream("POST", f"/{path}", json=own, headers=sent, timeout=self.patience_s) as answer:
            self.num_unanswered -= 1
            if answer.status_code == 503:  # a gateway that had no time for its store, or is about to leave, says so
                self.num_refused += 1
                return
            assert answer.status_code == 200, (await answer.aread()).decode()
            if not last:  # what came without ids was the beginning of an answer that begins once more now
                for before in self.reads:
                    before.events.clear()
            found, rest = Read(200, answer.headers), ""
            self.reads.append(found)
            async for part in answer.aiter_text():
                rest = found.take(rest + part)
                if 0 < self.leaves_after <= len(found.events) and found.last_id and not self.has_ended:
                    return
            last_words = ""
            while found.stream != "none" and found.events and not found.events[-1].id:
                last_words += found.events.pop().text
            assert not last_words or any(code in last_words for code in MOVED), last_words


async def until_recorded(http: httpx.AsyncClient) -> None:
    """The platform's first tenant has a data key."""

    async def is_recorded() -> bool:
        client = Client(f"warm-{os.urandom(4).hex()}", 0)
        await client.run(http)
        return client.reads[0].stream != "none"

    await eventually(is_recorded, "streams are recorded")


async def own_entries_of(ledger: Ledger, names: set[str], ended: Collection[str] = ()) -> list[LedgerEntry]:
    """Their entries once gateways that finished their streams wrote each; until then a worker's count stands there.

    It stays where a gateway was killed between the end of a stream and its entry, which may be so with those ``ended``.
    """

    def is_last(entry: LedgerEntry) -> bool:
        is_counted = entry.outcome is RequestOutcome.RECOVERED and entry.tag.http_request_id in ended
        return is_counted or entry.outcome is RequestOutcome.FINISHED

    async def are_finished() -> bool:
        return all(map(is_last, await entries_of(ledger, names)))

    await eventually(are_finished, "entries of finished streams")
    return await entries_of(ledger, names)


def gateways_of(platform: PlatformProcess) -> list[psutil.Process]:
    """Those that live; to ask for them takes as long as a short stream does."""
    pids = [process["pid"] for name, process in platform.processes().items() if name.startswith("gateway-")]
    return [psutil.Process(pid) for pid in pids if pid]


def busiest(gateways: Sequence[psutil.Process], platform: PlatformProcess) -> psutil.Process:
    """The one that has most clients: with one that has none nobody would lose anything."""
    port = httpx.URL(platform.base_url).port

    def num_clients(gateway: psutil.Process) -> int:
        try:
            found = gateway.net_connections("tcp")
        except psutil.NoSuchProcess:  # it was about to end when they were asked for
            return -1
        return sum(c.laddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in found)

    return max(gateways, key=num_clients)


def busiest_gateway(platform: PlatformProcess) -> psutil.Process:
    """The same among all that live now."""
    return busiest(gateways_of(platform), platform)


async def killed(gateway: psutil.Process) -> None:
    gateway.kill()


GOES_ON, RUNS_AGAIN = r"goes on as attempt \d+", r"attempt [1-9]\d{3,}, runs here"
"""What workers say of a stream that another gateway has taken over: they run it still, or once more."""
Harm = Callable[[psutil.Process], Awaitable[None]]


def was_taken_over(clients: Sequence[Client], entries: Sequence[LedgerEntry]) -> bool:
    """A client came back, and another gateway went on for one."""
    return any(len(client.reads) > 1 for client in clients) and any(entry.rank > OWN_RANK for entry in entries)


async def harm_under(clients: list[Client], http: httpx.AsyncClient, platform: PlatformProcess, harm: Harm) -> None:
    """Run all to their ends, and harm the busiest gateway when half of them have read something."""
    await asyncio.to_thread(platform.until_killable, "gateway-")
    gateways = await asyncio.to_thread(gateways_of, platform)
    running = [asyncio.create_task(client.run(http)) for client in clients]

    def are_under_way() -> bool:
        return sum(client.num_events > 5 for client in clients) > 3

    await while_running(running, are_under_way, "events of half of the streams")
    await asyncio.gather(harm(busiest(gateways, platform)), *running)


async def check_clients(
    platform: PlatformProcess,
    harm: Harm,
    is_enough: Callable[[Sequence[Client], Sequence[LedgerEntry]], bool] = was_taken_over,
    **more: Any,
) -> None:
    """In rounds, until one was cut: a process that gets little time reads when all has been sent.

    Args:
        platform: whose busiest gateway is harmed.
        harm: done while streams run.
        is_enough: whether a round shows something, by its clients and the entries of those that had records.
        more: fields of each client.
    """
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        await until_recorded(http)
        for attempt in rounds(f"a client cut by a gateway that was {harm.__name__}"):
            names = [(f"{harm.__name__}-stream-{attempt}-{number}", number % len(KINDS)) for number in range(8)]
            clients = [Client(name, kind, **more) for name, kind in names]
            again = [Client(name, kind, num_tokens=clients[0].num_tokens) for name, kind in names]
            await harm_under(clients, http, platform, harm)
            await asyncio.gather(*(client.run(http) for client in again))
            for client, repeated in zip(clients, again, strict=True):
                assert len(repeated.reads) == 1
                told = [(len(found.events), found.stream, found.last_id) for found in client.reads]
                assert contents(*client.reads) == contents(*repeated.reads), (client.name, told)
            recorded = [
                client
                for client, repeated in zip(clients, again, strict=True)
                if client.is_recorded and repeated.is_recorded
            ]
            entries = await own_entries_of(ledger, {client.name for client in recorded})
            assert len(entries) == sum(2 if KINDS[client.kind][0] == "completions" else 1 for client in recorded)
            await check_sums(ledger)
            if is_enough(clients, entries):
                return


def num_logged(platform: PlatformProcess, what: str) -> int:
    """How often workers that compute answers have said something."""
    return sum(len(re.findall(what, path.read_text())) for path in platform.run_dir().rglob("decode*.log"))


async def test_clients_of_a_killed_gateway_come_back_and_have_all_of_it(platform: PlatformProcess) -> None:
    """In a round, workers go on with all that they ran for it: what has a record by then is not computed again."""
    before = [num_logged(platform, what) for what in (GOES_ON, RUNS_AGAIN)]

    def was_gone_on_with(clients: Sequence[Client], entries: Sequence[LedgerEntry]) -> bool:
        [num_gone_on, num_again], before[:] = before, [num_logged(platform, what) for what in (GOES_ON, RUNS_AGAIN)]
        return was_taken_over(clients, entries) and before[0] > num_gone_on and before[1] == num_again

    await check_clients(platform, killed, was_gone_on_with)


def lost_for(kind: str, redis: psutil.Process) -> Harm:
    async def lost(gateway: psutil.Process) -> None:
        place = OneProcess(gateway.pid, redis=redis.pid)
        await Fault(kind, "gateway-0", lasting_s=SHORT_S).strike(place, asyncio.Event())

    lost.__name__ = kind
    return lost


@pytest.mark.parametrize("kind", ["stop", "cut-redis", "cut-workers", "drain"])
async def test_clients_of_a_gateway_that_is_lost_for_seconds_have_all_of_it(
    platform: PlatformProcess, kind: str
) -> None:
    """Short forms of those in ``test_hung_gateways`` and ``test_cut_gateways``; one round says enough."""
    redis = psutil.Process((await asyncio.to_thread(platform.processes))["redis"]["pid"])
    short = {"patience_s": 1.0, "num_tokens": NUM_SHORT}
    await check_clients(platform, lost_for(kind, redis), lambda clients, entries: True, **short)


async def begin_in_background(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post("/responses", json={**body, "background": True}, headers={"connection": "close"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def response_of(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    """The response as it stands, at whichever gateway lives."""
    while True:
        try:
            answer = await http.get(f"/responses/{name}", headers={"connection": "close"})
        except httpx.HTTPError:
            continue
        if answer.status_code == 503:  # as above
            continue
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


async def until(
    http: httpx.AsyncClient, names: Sequence[str], is_so: Callable[[Sequence[dict[str, Any]]], bool]
) -> None:
    """Wait until something is true of responses."""

    async def is_true() -> bool:
        return is_so([await response_of(http, name) for name in names])

    await eventually(is_true, "the responses stand as they have to")


@pytest.mark.slow
async def test_background_responses_of_a_killed_gateway_are_finished_by_another(platform: PlatformProcess) -> None:
    """In rounds, until one was taken over in its middle."""
    body = {**KINDS[2][1], "model": "base", "temperature": 1.0, "seed": 3, "ignore_eos": True}
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        await until_recorded(http)
        expected = (await http.post("/responses", json=body)).json()["output"][0]["content"][0]["text"]
        for _ in rounds("a background response taken over in its middle"):
            await asyncio.to_thread(platform.until_killable, "gateway-")
            gateways = await asyncio.to_thread(gateways_of, platform)
            names = [await begin_in_background(http, body) for _ in range(8)]
            await until(http, names, lambda found: any(response["output"] for response in found))
            busiest(gateways, platform).kill()
            await until(http, names, lambda found: all(response["status"] == "incomplete" for response in found))
            for name in names:
                assert (await response_of(http, name))["output"][0]["content"][0]["text"] == expected
            entries = await own_entries_of(ledger, set(names))
            assert len(entries) == len(names)
            await check_sums(ledger)
            if any(entry.rank > OWN_RANK for entry in entries):
                return
