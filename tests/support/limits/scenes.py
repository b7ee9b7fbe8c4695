"""Scenes beyond the table: long reservations that are left, and Redis away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.support.limits.gateways import LimitedGateway, LimitedGateways, LimitParts, OpenRequest, cost_of, make_tenant


async def abort_and_burst(url: str, parts: LimitParts | None = None) -> list[str]:
    """Ten long requests, each paid by refill, are left together; then as much is asked for as there is."""
    platform = LimitedGateways(url, 2, parts)
    tenant, cost = make_tenant(tokens_per_min=60_000, burst_s=60), cost_of(50_000)
    opened = []
    for place in range(10):
        opened.append(await platform.gateways[place % 2].take(tenant, cost))
        await asyncio.sleep(50.0)
    for request in opened:
        assert isinstance(request, OpenRequest)
        request.gateway.settle(request, 0)
    for _ in range(10):
        await asyncio.gather(*(gateway.take(tenant, cost) for gateway in platform.gateways))
        await asyncio.sleep(0.02)
    platform.close()
    return platform.book.problems(is_exact=False)


async def outage(url: str, parts: LimitParts | None = None) -> list[str]:
    """Clients of one gateway have used the burst; Redis goes away, they spread over all gateways, and Redis is back."""
    platform = LimitedGateways(url, 3, parts)
    tenant, first = make_tenant(requests_per_min=600, burst_s=60), platform.gateways[0]
    platform.book.known_late_s = float("inf")  # shares strand what other gateways do not use
    await _ask(platform, 5.0, 200.0, lambda: [first.take(tenant, cost_of())])
    platform.server.is_away = True
    before = platform.book.num_taken["t"]
    await _ask(platform, 60.0, 20.0, lambda: [gateway.take(tenant, cost_of()) for gateway in platform.gateways])
    found, taken = [], platform.book.num_taken["t"] - before
    if taken < 0.9 * 600:
        found.append(f"{taken} requests were accepted in an outage of 60 s, of 600")
    platform.born("new")  # and is counted: no window is passed
    await _ask(platform, 60.0, 20.0, lambda: [gateway.take(tenant, cost_of()) for gateway in platform.gateways])
    if platform.book.num_taken["t"] - before - taken < 0.9 * 600:
        found.append(f"{platform.book.num_taken['t'] - before - taken} of 600 requests with one more gateway")
    platform.server.is_away, before = False, platform.book.num_taken["t"]
    await _ask(platform, 10.0, 50.0, lambda: [gateway.take(tenant, cost_of()) for gateway in platform.gateways])
    if (taken := platform.book.num_taken["t"] - before) < 0.9 * 100:
        found.append(f"{taken} of 100 requests after the outage")
    platform.close()
    return found + platform.book.problems(is_exact=False)


async def outage_and_refunds(url: str) -> list[str]:
    """A tenant that reserves four times what it uses spends its limit while Redis is away, and goes on after it."""
    platform = LimitedGateways(url, 2)
    tenant = make_tenant(tokens_per_min=60_000, burst_s=10)
    platform.book.known_late_s = float("inf")

    async def use(gateway: LimitedGateway) -> None:
        if isinstance(request := await gateway.take(tenant, cost_of(400)), OpenRequest):
            gateway.settle(request, 100)

    async def used(seconds: float) -> int:
        before = platform.book.tokens_used["t"]
        await _ask(platform, seconds, 20.0, lambda: [use(gateway) for gateway in platform.gateways])
        return platform.book.tokens_used["t"] - before

    await used(10.0)
    platform.server.is_away = True
    meanwhile = await used(30.0)
    platform.server.is_away = False
    after = await used(10.0)
    platform.close()
    found = [] if meanwhile > 0.8 * 30_000 else [f"{meanwhile} tokens were used in an outage, of 30,000"]
    found += [] if after > 0.8 * 10_000 else [f"{after} tokens were used after it, of 10,000"]
    return found + platform.book.problems(is_exact=False)


async def born_at_return(url: str, parts: LimitParts | None = None) -> list[str]:
    """Gateways give what the rate brings without Redis, which refills meanwhile; one more starts as it comes back."""
    platform = LimitedGateways(url, 2, parts)
    tenant = make_tenant(requests_per_min=600, burst_s=10)
    platform.book.known_late_s = float("inf")
    await asyncio.sleep(3.0)
    await _ask(platform, 1.0, 200.0, lambda: [gateway.take(tenant, cost_of()) for gateway in platform.gateways])
    platform.server.is_away = True
    await _ask(platform, 20.0, 20.0, lambda: [gateway.take(tenant, cost_of()) for gateway in platform.gateways])
    platform.server.is_away, found = False, list[str]()
    born = platform.born("new")
    begin = platform.clock.now()
    first = await asyncio.gather(*(born.take(tenant, cost_of()) for _ in range(100)))
    if not any(isinstance(request, OpenRequest) for request in first):
        found.append("none of 100 requests is served by a gateway that starts")
    if platform.clock.now() - begin > 2.5:
        found.append(f"a request waited for {platform.clock.now() - begin:.1f} s")
    await asyncio.sleep(5.0)
    begin = platform.clock.now()
    if not isinstance(await born.take(tenant, cost_of()), OpenRequest) or platform.clock.now() - begin > 0.2:
        found.append("a gateway that has settled does not serve at once")
    platform.close()
    return found + platform.book.problems(is_exact=False)


async def come_again(url: str, parts: LimitParts | None = None, *, num_gateways: int = 2, **limits: int) -> list[str]:
    """Gateways, of which all but one hold slices that they do not use: a refused client comes again when it was told.

    What others have spent since their last report, a tenth of a second ago at most, is not known, so none is left open.
    """
    platform = LimitedGateways(url, num_gateways, parts)
    tenant, found = make_tenant(tokens_per_min=60_000, burst_s=2, **limits), list[str]()
    *idle, busy = platform.gateways
    for gateway in idle:
        await gateway.take(tenant, cost_of(300 // len(idle)))  # as much again stays there
    await asyncio.sleep(0.2)
    for num_tokens in (1000, 900, 250, 1300, 20) if limits else (1000, 900, 250, 1300):
        if num_tokens == 20:
            await asyncio.sleep(2.0)  # so that requests are the limit that is reached
        while isinstance(refused := await busy.take(tenant, cost_of(num_tokens)), OpenRequest):
            busy.settle(refused, num_tokens)
        if (" requests " in refused.message) != (num_tokens == 20):
            found.append(f"{num_tokens} tokens: {refused.message}")
        after_s = refused.after_s or 0.0
        await asyncio.sleep(0.8 * after_s)
        if isinstance(await busy.take(tenant, cost_of(num_tokens)), OpenRequest):
            found.append(f"{num_tokens} tokens are there a fifth of {after_s:.3f} s before they were promised")
        await asyncio.sleep(0.2 * after_s)
        if not isinstance(accepted := await busy.take(tenant, cost_of(num_tokens)), OpenRequest):
            found.append(f"{num_tokens} tokens are not there after {after_s:.3f} s")
        else:
            busy.settle(accepted, num_tokens)
    platform.close()
    return found + platform.book.problems(is_exact=False)


async def during_turns(url: str, parts: LimitParts | None = None) -> list[str]:
    """Requests come every millisecond, so that some meet every moment of a turn: each hears the exact time."""
    platform = LimitedGateways(url, 1, parts)
    [gateway], tenant = platform.gateways, make_tenant(requests_per_min=600, tokens_per_min=60_000, burst_s=1)
    platform.book.known_late_s = 0.003

    async def use() -> None:
        if isinstance(request := await gateway.take(tenant, cost_of(150)), OpenRequest):
            gateway.settle(request, 90)

    await _ask(platform, 1.5, 1000.0, lambda: [use()])
    platform.close()
    return platform.book.problems(is_exact=True)


async def lost_answer(url: str, parts: LimitParts | None = None) -> list[str]:
    """Redis books what a gateway reports, and its answer never arrives: the next report must not book it again."""
    platform = LimitedGateways(url, 1, parts)
    [gateway], tenant = platform.gateways, make_tenant(requests_per_min=600, burst_s=10)
    platform.book.known_late_s = 0.1
    for _ in range(5):
        await gateway.take(tenant, cost_of())
        gateway.leases.loses_answers = True
        for _ in range(5):
            await gateway.take(tenant, cost_of())
        await asyncio.sleep(0.2)
        gateway.leases.loses_answers = False
        await asyncio.sleep(1.0)
    unused = platform.book.unused(tenant, cost_of())
    accepted = [await gateway.take(tenant, cost_of()) for _ in range(int(unused))]
    platform.close()
    num = sum(isinstance(answer, OpenRequest) for answer in accepted)
    return [] if num >= unused - 2 else [f"{num} of {unused:.1f} requests are left"]


async def stand_still(url: str, seconds: float, parts: LimitParts | None = None) -> list[str]:
    """A gateway with all slots of a tenant is stopped, others take what they can get, and it goes on."""
    platform = LimitedGateways(url, 3, parts)
    tenant, (stopped, *others), found = make_tenant(max_sequences=6), platform.gateways, list[str]()
    await asyncio.sleep(3.0)
    first = [await stopped.take(tenant, cost_of()) for _ in range(6)]
    stopped.stop()
    await asyncio.sleep(seconds)
    later = [await gateway.take(tenant, cost_of()) for gateway in others * 2]
    stopped.go_on()
    await stopped.leaser.opened()  # nothing is sent before
    running = [request for request in (*first, *later) if isinstance(request, OpenRequest) and not request.is_cut]
    if len(running) != 6:
        found.append(f"{len(running)} sequences run of 6 that may")
    num_lost = sum(isinstance(request, OpenRequest) for request in later)
    cut = [isinstance(request, OpenRequest) and request.is_cut for request in first]
    if cut != [place >= 6 - num_lost for place in range(6)]:
        found.append(f"{num_lost} slots were lost, and these were cut: {cut}")
    for request in running:
        request.gateway.settle(request, 1)
    await asyncio.sleep(0.5)
    again = [await gateway.take(tenant, cost_of()) for gateway in platform.gateways * 2]
    if (num := sum(isinstance(request, OpenRequest) for request in again)) != 6:
        found.append(f"{num} of 6 slots are there afterwards")
    platform.close()
    return found


async def old_slice(url: str, parts: LimitParts | None = None) -> list[str]:
    """A gateway is stopped with a slice of the rate, others spend the whole bucket, and it goes on."""
    platform = LimitedGateways(url, 2, parts)
    tenant, (stopped, other) = make_tenant(tokens_per_min=60_000, burst_s=10), platform.gateways
    platform.book.known_late_s = float("inf")
    await asyncio.sleep(3.0)
    await stopped.take(tenant, cost_of(3000))  # so much more stays there
    stopped.stop()
    await asyncio.sleep(20.0)
    while isinstance(await other.take(tenant, cost_of(100)), OpenRequest):
        pass
    stopped.go_on()
    await stopped.take(tenant, cost_of(3000))
    platform.close()
    return platform.book.problems(is_exact=False)


async def _ask(
    platform: LimitedGateways, seconds: float, per_s: float, requests: Callable[[], Sequence[Awaitable[object]]]
) -> None:
    """So often for so long."""
    tasks, end = list[asyncio.Future[object]](), platform.clock.now() + seconds
    while platform.clock.now() < end:
        tasks += [asyncio.ensure_future(request) for request in requests()]
        await asyncio.sleep(1 / per_s)
    await asyncio.gather(*tasks)


async def after_silences(url: str, parts: LimitParts | None = None) -> list[str]:
    """Fifty requests at once after each length of silence, around those at which slices end and buckets are dropped."""
    platform = LimitedGateways(url, 2, parts)
    tenant = make_tenant(requests_per_min=60_000, tokens_per_min=6_000_000, burst_s=1, max_sequences=256)
    found = []
    for silence_s in (0.0, 0.5, 2.9, 3.0, 3.1, 9.9, 10.0, 10.1, 60.0, 301.0):
        await asyncio.sleep(silence_s)
        asked = (platform.gateways[place % 2].take(tenant, cost_of(50)) for place in range(50))
        opened = [answer for answer in await asyncio.gather(*asked) if isinstance(answer, OpenRequest)]
        if len(opened) < 50:
            found.append(f"{len(opened)} of 50 accepted after {silence_s} s")
        for request in opened:
            request.gateway.settle(request, 20)
    platform.close()
    return found + platform.book.problems(is_exact=False)


async def long_stream(url: str, num_gateways: int) -> list[str]:
    """A stream ends when its gateway has long forgotten its tenant, who then asks for all there is."""
    platform = LimitedGateways(url, num_gateways)
    tenant, first = make_tenant(tokens_per_min=60_000, burst_s=60), platform.gateways[0]
    request = await first.take(tenant, cost_of(60_000))
    assert isinstance(request, OpenRequest)
    await asyncio.sleep(15.0)
    first.settle(request, 59_000)
    await asyncio.sleep(0.5)
    for gateway in platform.gateways:
        while isinstance(await gateway.take(tenant, cost_of(4_000)), OpenRequest):
            pass
    found = [] if platform.book.num_taken["t"] >= 4 else ["what the rate has brought was refused"]
    await asyncio.sleep(20.0)
    if first.leaser.buckets:
        found.append("a bucket is never forgotten")
    platform.close()
    return found + platform.book.problems(is_exact=False)
