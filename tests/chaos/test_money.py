"""Three gateways and two routers under 64 clients with limits and prices, while processes end: bills, limits, texts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from stratos.cli.chaos.faults.fault import Fault
from stratos.cli.chaos.local_target import ChaosTarget
from stratos.cli.chaos.report import ChaosReport, ChaosRow
from tests.chaos.test_faults import GATEWAY_S
from tests.support.chaos.payers import LIMITS, Paid, Payers, beyond_limits, declaration
from tests.support.waiting import eventually
from tests.support.worlds.platform_process import PlatformProcess

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
NUM_EACH = 24
"""Answers of each tenant before the faults, and after them."""
SCENARIOS = [
    (Fault("kill", "router-0"), Fault("kill", "decode-0")),
    (Fault("stop", "router-1"), Fault("kill", "prefill-0")),
    (Fault("kill", "redis"),),
    (Fault("kill", "gateway-1"),),
    (Fault("stop", "gateway-2", GATEWAY_S), Fault("kill", "decode-1")),
    (Fault("kill", "gateway-0"), Fault("kill", "redis")),
    *((Fault(kind, "gateway-1", GATEWAY_S),) for kind in ("stop", "drain", "partition", "cut-redis", "cut-workers")),
]


@dataclass(frozen=True)
class Account:
    """A tenant's part of the ledger."""

    entries: list[dict[str, Any]]
    due: int
    """What the statement of the month says, micro-units."""


class Admin:
    """Client of the admin API."""

    def __init__(self, platform: PlatformProcess) -> None:
        key = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
        url, headers = platform.facts()["admin_url"], {"authorization": f"Bearer {key}"}
        transport = httpx.HTTPTransport(retries=3)
        self.http = httpx.Client(
            base_url=f"{url}/admin/v1", headers=headers, timeout=60, trust_env=False, transport=transport
        )

    def setup_keys(self) -> dict[str, str]:
        """Make the tenants; returns a key of each."""
        answer = self.http.post("/declaration", content=json.dumps(declaration()))
        assert answer.status_code == httpx.codes.OK, answer.text
        return {name: self.http.post("/keys", json={"tenant": f"chaos-{name}"}).json()["key"] for name in LIMITS}

    def account(self, tenant: str) -> Account:
        """Today's entries and the month's statement, of one moment."""
        while True:
            due, entries = self._due(tenant), self._entries(tenant)
            if due == self._due(tenant):
                return Account(entries, due)

    def _entries(self, tenant: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        cursor = 0
        while True:
            query = {"tenant": f"chaos-{tenant}", "day": f"{datetime.now(UTC):%Y-%m-%d}", "cursor": cursor}
            page = self.http.get("/ledger", params=query).json()
            found |= {entry["request_id"]: entry for entry in page["data"]}  # a page may repeat one
            if not (cursor := page["next_cursor"]):
                return list(found.values())

    def _due(self, tenant: str) -> int:
        query = {"tenant": f"chaos-{tenant}", "month": f"{datetime.now(UTC):%Y-%m}"}
        return int(self.http.get("/statement", params=query).json()["due"])


@pytest.fixture(scope="module")
def admin(platform: PlatformProcess) -> Iterator[Admin]:
    admin = Admin(platform)
    yield admin
    admin.http.close()


@pytest.fixture(scope="module")
def keys(platform: PlatformProcess, admin: Admin) -> dict[str, str]:
    """Of each tenant; every gateway knows them."""
    keys = admin.setup_keys()

    async def are_known() -> bool:
        async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as client:
            headers = [{"authorization": f"Bearer {key}"} for key in keys.values()]
            asks = [client.get(f"{platform.base_url}/models", headers=one) for one in headers for _ in range(12)]
            return {answer.status_code for answer in await asyncio.gather(*asks)} == {httpx.codes.OK}

    asyncio.run(eventually(are_known, "keys at every gateway"))
    return keys


@pytest.mark.parametrize("faults", SCENARIOS, ids=lambda faults: " and ".join(map(str, faults)))
def test_bills_are_what_clients_got_and_limits_hold(
    target: ChaosTarget, admin: Admin, keys: dict[str, str], report: ChaosReport, faults: tuple[Fault, ...]
) -> None:
    payers = Payers(target.facts.base_url, keys, f"m{time.monotonic_ns()}")
    before = {tenant: admin.account(tenant) for tenant in LIMITS}
    proofs: list[dict[str, object]] = []

    async def strike(in_effect: asyncio.Event) -> None:
        proofs.extend(await asyncio.gather(*(fault.strike(target, in_effect) for fault in faults)))

    asyncio.run(payers.run(strike, NUM_EACH))
    lost = broken(payers.paid, faults)
    problems = [*beyond_limits(payers.paid), *other_texts(payers.paid), *lost]
    for tenant, paid in payers.paid.items():
        problems += asyncio.run(unlike_the_ledger(admin, tenant, paid, before[tenant]))
    requests = [request for paid in payers.paid.values() for request in paid]
    statuses = Counter(request.status for request in requests)
    num_cut = sum(bool(request.error) for request in requests) - len(lost)
    back = [request for request in requests if request.num_returns]
    num_recorded = sum(request.is_recorded for request in back)
    row = ChaosRow(
        scenario=f"money: {' and '.join(map(str, faults))}",
        streams=sum(request.status == httpx.codes.OK for request in requests),
        different=sum("other text" in problem for problem in problems),
        failed=len(lost),
        longest_gap_s=round(max(request.first - request.sent for request in requests), 2),
        effect=f"statuses {dict(statuses)}, {num_cut} cut with their gateway, {len(back)} came back for their answers, "
        f"{num_recorded} of them with a record at every connection; {'; '.join(map(str, proofs))}",
        problems=tuple(problems),
    )
    report.add(row)
    assert not problems, problems


def other_texts(paid: dict[str, list[Paid]]) -> list[str]:
    """Answers to one prompt begin alike, however long they are."""
    complete = [request for requests in paid.values() for request in requests if request.is_complete]
    longest = {request.prompt: request.text for request in sorted(complete, key=lambda one: len(one.text))}
    return [f"{one.request_id}: other text" for one in complete if not longest[one.prompt].startswith(one.text)]


def broken(paid: dict[str, list[Paid]], faults: tuple[Fault, ...]) -> list[str]:
    """Streams that did not end as they should: only a gateway takes its streams with it, of clients without a key.

    Where Redis is struck with it, a record may have gone with that.
    """
    targets = {fault.target.rstrip("-0123456789") for fault in faults}
    may_lose, may_lose_records = "gateway" in targets, targets >= {"gateway", "redis"}
    return [
        f"{one.request_id}: {one.error}"
        for requests in paid.values()
        for one in requests
        if one.error and not (may_lose_records if one.has_key else may_lose)
    ]


async def unlike_the_ledger(admin: Admin, tenant: str, paid: list[Paid], before: Account) -> list[str]:
    """Where the ledger is not what the clients of a tenant saw.

    A stream that was cut is in it once, for what was computed, or not at all where nothing was. One whose client came
    back is in it once, too, where each of its connections had a record.
    """
    wanted = {one.request_id for one in paid if one.is_complete}
    account = before

    def is_there() -> bool:
        nonlocal account
        account = admin.account(tenant)
        return wanted <= {entry["http_request_id"] for entry in account.entries}

    with contextlib.suppress(AssertionError):  # what is missing is told below
        await eventually(lambda: asyncio.to_thread(is_there), "every request in the ledger", timeout_s=60, poll_s=0.5)
    known = {entry["request_id"] for entry in before.entries}
    new = [entry for entry in account.entries if entry["request_id"] not in known]
    entries: dict[str, list[tuple[int, int]]] = {}
    for entry in new:
        counts = entry["prompt_tokens"], entry["output_tokens"]
        entries.setdefault(entry["http_request_id"], []).append(counts)
    problems = [text for one in paid for text in _unlike(one, entries.pop(one.request_id, []))]
    problems += [f"{tenant}: an entry of no request: {name!r} {counts}" for name, counts in entries.items()]
    if sum(entry["due"] for entry in new) != account.due - before.due:
        problems.append(f"{tenant}: entries and statement differ")
    return problems


def _unlike(paid: Paid, entries: list[tuple[int, int]]) -> list[str]:
    """Where a request is not in the ledger as its client saw it."""
    is_refused = paid.status not in (0, httpx.codes.OK)
    if is_refused or paid.num_returns:
        # A try that was placed before its gateway stood still is there with nothing, as all that fail are.
        entries = [entry for entry in entries if entry != (0, 0)]
    if paid.usage is None:
        return [f"{paid.request_id}: {entries} in the ledger"] if len(entries) > (0 if is_refused else 1) else []
    expected = paid.usage["prompt_tokens"], paid.usage["completion_tokens"]
    if paid.num_returns and not paid.is_recorded and expected in entries:
        return []  # a try without a record is computed and billed for itself
    told = [f"{paid.request_id}: {entries} in the ledger, {expected} got, {paid.connections}"]
    return [] if entries == [expected] else told
