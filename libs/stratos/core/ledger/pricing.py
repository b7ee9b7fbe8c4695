"""From tokens and times to money: integers of micro-units, nothing is ever a float.

    gross            every prompt token at the price of a computed one, every output token at its price, and what
                     tokens cost more whose KV is kept for the client
    cached discount  what prompt tokens from the prefix cache cost less
    batch discount   a part of what is left
    replay discount  a part of what is left then
    net              what is left in the end: what is charged
    credit           a part of ``net`` that is given back, because a promised time was not kept

A price is of a million tokens, so an amount is rounded once: the difference to the exact value is at most half a
micro-unit in each part of ``gross``, and one in each discount and in ``credit``, which are rounded down.
"""

from __future__ import annotations

from dataclasses import field, replace

from stratos.common.changed import record
from stratos.core.ledger.itls import NO_ITLS, Itls
from stratos.core.requests.pins import NO_WRITES, CacheWrites
from stratos.core.tenancy.plan import Plan
from stratos.core.tenancy.prices import CachePrices, Price

TOKENS_PER_PRICE = 1_000_000


@record(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one request that are charged."""

    num_prompt: int = 0
    num_cached: int = 0
    """Tokens of ``num_prompt`` that the prefix cache had."""
    num_output: int = 0
    writes: CacheWrites = NO_WRITES
    """Tokens of ``num_prompt`` whose KV is kept for the client since this request."""


@record(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Micro-units. ``gross`` is ``net`` and the discounts together, exactly."""

    gross: int = 0
    write_surcharge: int = 0
    """Part of ``gross``: what kept tokens cost more than others."""
    cached_discount: int = 0
    batch_discount: int = 0
    replay_discount: int = 0
    credit: int = 0

    @property
    def net(self) -> int:
        """Charge before the credit."""
        return self.gross - self.cached_discount - self.batch_discount - self.replay_discount

    @property
    def due(self) -> int:
        """Charge after the credit: the amount to be paid."""
        return self.net - self.credit


@record(frozen=True, slots=True, kw_only=True)
class Times:
    """Times as the client saw them; ``None`` where there was no such moment."""

    ttft_us: int | None = None
    """From the last byte of the request to its first token."""
    itl_us: int | None = None
    """Mean time between two tokens of a choice."""
    itls: Itls = field(default=NO_ITLS, compare=False)
    """All of these times; an entry of the ledger has them in its window's share alone."""


def kept_promises(plan: Plan, times: Times) -> dict[str, bool]:
    """Whether each time ("ttft", "itl") that was promised and measured was kept."""
    if plan.ttft_ms is None and plan.itl_ms is None:
        return {}
    pairs = {"ttft": (times.ttft_us, plan.ttft_ms), "itl": (times.itl_us, plan.itl_ms)}
    return {
        name: measured_us <= promised_ms * 1000
        for name, (measured_us, promised_ms) in pairs.items()
        if measured_us is not None and promised_ms is not None
    }


def is_promise_kept(plan: Plan, times: Times, *, has_failed: bool) -> bool | None:
    """Whether a request kept the times of its plan.

    Args:
        plan: with the promised times.
        times: what the client saw.
        has_failed: the platform ended the request with an error.

    Returns:
        ``None`` where nothing was promised, or nothing can be said: the client left before the first token.
    """
    if plan.ttft_ms is None and plan.itl_ms is None:
        return None
    if has_failed:
        return False
    kept = kept_promises(plan, times)
    return all(kept.values()) if kept else None


def price_request(
    plan: Plan, model_size: str, counts: TokenCounts, *, is_replay: bool = False, is_kept: bool | None = None
) -> Amounts:
    """Price a request.

    Args:
        plan: with prices and discounts.
        model_size: row of the prices.
        counts: what is charged.
        is_replay: the answer came from the response cache.
        is_kept: whether the promised times were kept, as ``is_promise_kept`` says.
    """
    price, discounts = _with_read_price(plan.price(model_size), plan.cache_prices), plan.discounts
    surcharge = _surcharge(price, plan.cache_prices, counts.writes)
    gross = amount_of(price, TokenCounts(num_prompt=counts.num_prompt, num_output=counts.num_output)) + surcharge
    left = min(gross, amount_of(price, counts) + surcharge)
    cached = gross - left
    batch = left * discounts.batch_percent // 100 if plan.is_batch else 0
    left -= batch
    replay = left * discounts.replay_percent // 100 if is_replay else 0
    left -= replay
    credit = left * discounts.credit_percent // 100 if is_kept is False else 0
    return Amounts(
        gross=gross,
        write_surcharge=surcharge,
        cached_discount=cached,
        batch_discount=batch,
        replay_discount=replay,
        credit=credit,
    )


def _with_read_price(price: Price, cache_prices: CachePrices) -> Price:
    read_percent = cache_prices.read_percent
    return price if read_percent is None else replace(price, cached=price.prompt * read_percent // 100)


def _surcharge(price: Price, cache_prices: CachePrices, writes: CacheWrites) -> int:
    """Cost of kept tokens above that of others, in micro-units, rounded like an amount."""
    percents = (
        writes.num_5m * (cache_prices.write_5m_percent - 100)
        + writes.num_1h * (cache_prices.write_1h_percent - 100)
        + writes.num_24h * (cache_prices.write_24h_percent - 100)
    )
    return (percents * price.prompt + 50 * TOKENS_PER_PRICE) // (100 * TOKENS_PER_PRICE)


def amount_of(price: Price, counts: TokenCounts) -> int:
    """Amount for tokens, in micro-units: rounded to the nearest micro-unit, halves up."""
    computed = counts.num_prompt - counts.num_cached
    exact = computed * price.prompt + counts.num_cached * min(price.cached, price.prompt)
    exact += counts.num_output * price.output
    return (exact + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE
