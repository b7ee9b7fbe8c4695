"""Workers that follow records of models: started, replaced, drained once idle, each record in its own order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from stratos.cli.models.pools import IDLE_LOOKS, ModelPools
from stratos.common.errors import DependencyDown
from stratos.core.fleet import Fleet, FleetWorker
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.store.models.forms import model_id, model_to_json
from stratos.store.models.model_record import ModelRecord, ModelSpeculation
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, make_body, parse_record
from tests.support.waiting import eventually

DIGEST, OWN = "a" * 64, "e" * 64


@dataclass
class Follower:
    """Of a snapshot that the test changes itself."""

    snapshot: FollowedSnapshot = field(default_factory=FollowedSnapshot)
    version: int = 0

    async def run(self) -> None:
        await asyncio.Event().wait()

    def put(self, name: str, source: str = "/models/m", digest: str = DIGEST, **terms: Any) -> None:
        record = ModelRecord(name=name, digest=digest, text_digest="b" * 64, source=source, **terms)
        self._merge(model_id(name, digest), make_body(model_to_json(record)))

    def remove(self, name: str, digest: str = DIGEST) -> None:
        self._merge(model_id(name, digest), make_body({}, is_deleted=True))

    def _merge(self, record_id: str, body: str) -> None:
        self.version += 1
        self.snapshot.merge(parse_record(Kind.MODEL, record_id, f"{self.version} {body}"))


@dataclass
class Workers:
    """Processes of a test."""

    log: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    error: Exception = field(default_factory=lambda: DependencyDown("it does not start"))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    num_asked: int = 0
    booked: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate.set()

    async def start_model(self, record: ModelRecord) -> list[str]:
        self.num_asked += 1
        await self.gate.wait()
        await asyncio.sleep(0)
        if not self.failing.isdisjoint((record.name, record.source)):
            raise self.error
        self.log.append(f"start {record.name} from {record.source}")
        return [f"decode-{record.name}-0"]

    async def begin_drain(self, name: str) -> None:
        self.log.append(f"drain {name}")

    async def fleet(self) -> Fleet:
        self.log.append("look")
        refs = [
            (WorkerRef(worker_id=name, incarnation="i", address="", role=WorkerRole.DECODE), count)
            for name, count in self.booked.items()
        ]
        return Fleet(workers=tuple(FleetWorker(ref=r, status=None, is_live=True, num_booked=n) for r, n in refs))


@asynccontextmanager
async def pools(follower: Follower, workers: Workers, said: list[str]) -> AsyncIterator[None]:
    found = ModelPools(follower, workers, {OWN}, said.append, look_s=0.0)
    run = asyncio.create_task(found.run())
    try:
        yield
    finally:
        run.cancel()
        await asyncio.wait([run])


def acts(workers: Workers) -> list[str]:
    return [line for line in workers.log if line != "look"]


async def test_workers_come_with_a_record_and_leave_once_they_are_idle() -> None:
    follower, workers, said = Follower(), Workers(), list[str]()
    workers.booked["decode-small-0"] = 1
    async with pools(follower, workers, said):
        follower.put("small")
        await eventually(lambda: acts(workers) == ["start small from /models/m"], "they start")
        follower.put("small", size="8b")  # a term of gateways alone
        follower.put("flagged", digest=OWN)
        follower.put("elsewhere", source="s3 folder", digest="c" * 64)
        follower.put("published", source="registry:org/m@aa", digest="f" * 64)
        await eventually(lambda: acts(workers)[1:] == ["start published from registry:org/m@aa"], "from the registry")
        workers.log.remove("start published from registry:org/m@aa")
        follower.remove("small")
        await eventually(lambda: workers.log.count("look") > 10, "a request of theirs still runs")
        assert acts(workers) == ["start small from /models/m"]
        workers.booked["decode-small-0"] = 0
        await eventually(lambda: acts(workers)[1:] == ["drain decode-small-0"], "they leave")
    assert said == []


async def test_new_weights_replace_workers_in_order_and_a_start_that_fails_harms_no_other_model() -> None:
    follower, workers, said = Follower(), Workers(failing={"bad"}), list[str]()
    async with pools(follower, workers, said):
        follower.put("bad", digest="d" * 64)
        follower.put("small", source="/models/n")
        await eventually(lambda: "start small from /models/n" in workers.log, "they start")
        follower.put("small", source="/models/o")
        await eventually(lambda: "start small from /models/o" in workers.log, "they are replaced")
        await eventually(lambda: len(said) > 1, "a start that failed is tried again with the next record")
        workers.failing.clear()
        follower.put("bad", digest="d" * 64)
        await eventually(lambda: "start bad from /models/m" in workers.log, "which may be its own")
        follower.remove("small")
        await eventually(lambda: acts(workers)[-1].startswith("drain"), "they leave")
    assert [act for act in acts(workers) if "small" in act] == [
        "start small from /models/n", "start small from /models/o", "drain decode-small-0", "drain decode-small-0",
    ]  # fmt: skip
    assert set(said) == {"model bad: no workers: it does not start"}


async def test_a_model_that_is_removed_and_added_again_keeps_its_workers() -> None:
    follower, workers, said = Follower(), Workers(), list[str]()
    workers.booked["decode-small-0"] = 1
    async with pools(follower, workers, said):
        follower.put("small")
        await eventually(lambda: acts(workers) == ["start small from /models/m"], "they start")
        follower.remove("small")
        await eventually(lambda: "look" in workers.log, "it waits until they are idle")
        follower.put("small")
        workers.booked["decode-small-0"] = 0
        follower.put("last", digest="c" * 64)
        await eventually(lambda: "start last from /models/m" in workers.log, "its turn is over")
        num_looks = workers.log.count("look")
        follower.remove("small")
        await eventually(lambda: acts(workers)[-1] == "drain decode-small-0", "they are known still, and leave")
        assert workers.log.count("look") >= num_looks + IDLE_LOOKS
    assert acts(workers).count("drain decode-small-0") == acts(workers).count("start small from /models/m") == 1


async def test_changed_needs_start_new_workers_though_the_old_ones_are_busy() -> None:
    follower, workers, said = Follower(), Workers(), list[str]()
    workers.booked["decode-small-0"] = 1
    async with pools(follower, workers, said):
        follower.put("small")
        await eventually(lambda: len(acts(workers)) == 1, "they start")
        follower.remove("small")
        await eventually(lambda: "look" in workers.log, "they are to leave")
        follower.put("small", source="/models/n")
        await eventually(lambda: acts(workers)[-1] == "start small from /models/n", "the new ones come first")
        workers.booked.clear()
        follower.put("small", source="/models/n", speculation=ModelSpeculation(method="off"))
        await eventually(lambda: acts(workers).count("start small from /models/n") == 2, "drafts are a need as well")


async def test_an_odd_record_is_reported_and_ends_the_following_of_no_other() -> None:
    follower, said = Follower(), list[str]()
    workers = Workers(failing={"bad"}, error=PermissionError("not yours"))
    async with pools(follower, workers, said):
        follower.put("bad", digest="d" * 64)
        await eventually(lambda: said, "it is reported")
        follower.put("small")
        await eventually(lambda: acts(workers) == ["start small from /models/m"], "the next one starts")
    assert "not yours" in said[0]


async def test_a_record_that_failed_while_it_changed_starts_one_set_of_workers() -> None:
    follower, workers, said = Follower(), Workers(failing={"/models/m"}), list[str]()
    workers.gate.clear()
    async with pools(follower, workers, said):
        follower.put("small")
        await eventually(lambda: workers.num_asked == 1, "it is started")
        follower.put("small", source="/models/n")
        follower.put("last", source="/models/o", digest="c" * 64)
        await eventually(lambda: workers.num_asked == 2, "the change is seen")
        workers.gate.set()
        await eventually(lambda: said, "the first start fails")
        await eventually(lambda: "start small from /models/n" in workers.log, "the second one does not")
        follower.put("more", source="/models/o", digest="f" * 64)
        await eventually(lambda: "start more from /models/o" in workers.log, "all is looked at again")
        follower.remove("small")
        await eventually(lambda: acts(workers)[-1] == "drain decode-small-0", "they leave")
    assert [act for act in acts(workers) if "small" in act] == ["start small from /models/n", "drain decode-small-0"]
