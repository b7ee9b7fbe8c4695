"""Quoted figures of money: a million tokens, break-even, devices of a load, shares of a bill."""

from __future__ import annotations

from stratos.calculators.formula import Formula
from stratos.calculators.published import published_breakeven, published_cost
from stratos.reproduce.record.answer import ClaimAnswer
from stratos.reproduce.record.claim import at_least, between, exactly
from stratos.reproduce.rows.calculated.quoted import given

PER_MILLION = Formula("usd_per_million", "devices * usd_per_hour / (use * tokens_per_s * 3600) * 10 ** 6")
PER_YEAR = Formula("usd_per_year", "devices * usd_per_hour * 24 * 365")
BREAKEVEN = Formula("breakeven_tokens", "devices * usd_per_hour * 720 / api_usd_per_million * 10 ** 6")
PER_DAY = Formula("usd_per_day", "devices * usd_per_hour * 24")
RESERVED = {"devices": 4, "usd_per_hour": 1.6}
PUBLISHED_API = 10
"""USD a million tokens."""


def money_answers() -> list[ClaimAnswer]:
    """All of them, in the order of their kinds."""
    return [*_bills(), *_millions(), *_variants(), *_breakeven(), *_days(), *_shares()]


def _bills() -> list[ClaimAnswer]:
    """Shares of a month's bill, and prices that it implies."""
    share, margin = Formula("share", "part / whole"), Formula("margin", "1 - usd_per_month / revenue_usd")
    return [
        given(exactly("0.8", "devices are 43 % of 4.2 M USD", 0.43), share, part=1.8e6, whole=4.2e6),
        given(exactly("0.8", "a device's hour at 0.84 USD a million: 9.77 USD by the month's bill", 9.77),
              "usd_per_million * tokens_per_s * 3600 / 10 ** 6", "usd_per_hour", usd_per_million=0.84,
              tokens_per_s=340),
        given(exactly("0.9", "margin before: 57 %", 0.57), margin, usd_per_month=1.8e6, revenue_usd=4.2e6),
        given(exactly("0.9", "margin after: 81 %", 0.81), margin, usd_per_month=0.78e6, revenue_usd=4.2e6),
        given(exactly("0.9", "340 to 1,200 tokens/s a device: 0.78 M USD a month", 0.78e6),
              "usd_per_month * tokens_per_s_before / tokens_per_s_after", "usd_per_month_after", usd_per_month=1.8e6,
              tokens_per_s_before=340, tokens_per_s_after=1200),
    ]  # fmt: skip


def _millions() -> list[ClaimAnswer]:
    """A million tokens, by the prices and speeds that were quoted."""
    lines = (
        ("1.8", "8 devices, TensorRT-LLM: 0.04 USD a million", 0.04, 8, 2.5, 4800, 1),
        ("1.8", "8 devices, vLLM: 0.06 USD a million", 0.06, 8, 2.5, 3400, 1),
        ("1.8", "8 devices, TGI: 0.07 USD a million", 0.07, 8, 2.5, 2900, 1),
        ("1.11", "4 devices on demand at 3,400 tokens/s: 0.82 USD a million", 0.82, 4, 2.5, 3400, 1),
        ("1.11", "the same, reserved: 0.52 USD a million", 0.52, 4, 1.6, 3400, 1),
        ("1.12", "reserved, used to 30 %: 1.72 USD a million", 1.72, 4, 1.6, 3400, 0.3),
        ("1.12", "reserved, used to 10 %: 5.15 USD a million", 5.15, 4, 1.6, 3400, 0.1),
    )
    found = [
        given(exactly(claim, text, usd), PER_MILLION, devices=devices, usd_per_hour=price, tokens_per_s=speed, use=use)
        for claim, text, usd, devices, price, speed, use in lines
    ]
    with_people = Formula("usd_per_million", "usd_per_million_devices * 1.3")
    times = Formula("times_cheaper", "api_usd_per_million / usd_per_million")
    return [
        *found,
        given(exactly("1.8", "TensorRT-LLM: 4,800 tokens/s, at 0.04 USD a million", 4800),
              "devices * usd_per_hour / usd_per_million / 3600 * 10 ** 6", "tokens_per_s", devices=8, usd_per_hour=2.5,
              usd_per_million=0.04),
        given(exactly("1.11", "4 devices carry the 3,400 tokens/s of claim 1.8's 8: tokens/s a device", 3400 / 8),
              "tokens_per_s / devices", "device_tokens_per_s", tokens_per_s=3400, devices=4),
        given(exactly("1.11", "30 % on top, reserved: 0.68 USD", 0.68), with_people, usd_per_million_devices=0.52),
        given(exactly("1.11", "30 % on top, on demand: 1.07 USD", 1.07), with_people, usd_per_million_devices=0.82),
        *(given(between("1.11", f"10-15 times cheaper than an API of 10 USD, at {usd} USD", 10, 15), times,
                api_usd_per_million=PUBLISHED_API, usd_per_million=usd) for usd in (0.68, 1.07)),
    ]  # fmt: skip


def _variants() -> list[ClaimAnswer]:
    """Ten variants of a model, with devices of their own and on shared ones."""
    return [
        given(
            exactly("1.10", "40 devices: 100 USD an hour", 100),
            "devices * usd_per_hour",
            "usd_per_hour_of_all",
            devices=40,
            usd_per_hour=2.5,
        ),
        given(exactly("1.10", "40 devices: 876 K USD a year", 876e3), PER_YEAR, devices=40, usd_per_hour=2.5),
        given(exactly("1.10", "4 devices: 87.6 K USD a year", 87.6e3), PER_YEAR, devices=4, usd_per_hour=2.5),
        given(at_least("1.10", "8 devices: more than 250 K USD a year", 250e3), PER_YEAR, devices=8, usd_per_hour=2.5),
    ]


def _breakeven() -> list[ClaimAnswer]:
    """Own devices against an API."""
    api = published_breakeven(10_640, 0.0085, 50)
    million = 10**6
    return [
        *(given(exactly("1.12", f"break-even at {use} % use: {quoted:g} M tokens a month", quoted * million), BREAKEVEN,
                api_usd_per_million=PUBLISHED_API, **RESERVED) for use, quoted in ((30, 1.5), (10, 4.6))),
        given(at_least("1.12", "own devices pay above 5 M tokens a month: they cost less than the API then", 1),
              "tokens * api_usd_per_million / 10 ** 6 / (devices * usd_per_hour * 720)", "times_cheaper",
              tokens=5 * million, api_usd_per_million=PUBLISHED_API, **RESERVED),
        given(exactly("3.12", "1 M requests of an API a month: 8,500 USD", 8500), "requests * api_usd_per_request",
              "usd_per_month", requests=million, api_usd_per_request=0.0085),
        given(exactly("3.12", "2 devices at 10,640 USD a month against 0.0085 USD a request: even at 1.25 M", 1.25e6),
              "breakeven_requests", "requests", breakeven_requests=api["breakeven_requests"]),
        given(exactly("3.12", "50 requests/s, 70 % used by its own code: 130 M requests a month", 130e6),
              "use * requests_per_s * 720 * 3600", "requests", use=0.7, requests_per_s=50),
        given(exactly("3.12", "the same: 106 times cheaper", 106), "use * times_cheaper", "times_cheaper", use=0.7,
              times_cheaper=api["times_cheaper"]),
    ]  # fmt: skip


def _days() -> list[ClaimAnswer]:
    """Costs of a day, and devices for a load."""
    cost = published_cost(10_000, 500, 200, 3)
    lines = ((2, 150, "2 devices"), (13, 1500, "5 + 2 x 4 devices"), (50, 10_000, "50 devices, the least"),
             (100, 10_000, "100 devices, the most"))  # fmt: skip
    return [
        *(given(exactly("4.4", f"calculate_cost(10000, 500, 200, 3): {name} {quoted}", quoted), name, name,
                **{name: cost[name]})
          for name, quoted in (("usd_per_day", 20.83), ("usd_per_month", 625), ("usd_per_million", 4.17))),
        given(exactly("4.14", "100 requests/s of 200 tokens: 2 devices, 2,800 tokens/s each by claim 4.13", 2),
              "ceil(requests_per_s * output_tokens / tokens_per_s)", "devices", requests_per_s=100,
              output_tokens=200, tokens_per_s=2800),
        *(given(exactly("4.14", f"{text} at 3 USD an hour: {usd:,} USD a day", usd), PER_DAY, devices=devices,
                usd_per_hour=3) for devices, usd, text in lines),
    ]  # fmt: skip


def _shares() -> list[ClaimAnswer]:
    """Ratios of quality, price and speed."""
    quality, saved = Formula("loss_ratio", "(small / large) ** exponent"), Formula("saved_share", "1 - less / more")
    return [
        given(exactly("0.7", "quality of 13B beside 70B: 0.880", 0.880), quality, small=13, large=70, exponent=0.076),
        given(exactly("0.7", "price of 70B beside 13B: 5.4, for a lower efficiency", 5.4), "large / small", "ratio",
              small=13, large=70),
        given(exactly("4.5", "int4 is 4 times cheaper", 4), "usd_16_bits / usd_4_bits", "ratio", usd_16_bits=22.22,
              usd_4_bits=7.41),
        given(exactly("4.5", "int4 on one device costs 67 % less", 0.67), saved, less=7.41, more=22.22),
        given(exactly("4.5", "throughput of int4: 150 % of 16 bits", 1.5),
              "(devices_4_bits / usd_4_bits) / (devices_16_bits / usd_16_bits)", "throughput_ratio",
              devices_4_bits=1, usd_4_bits=7.41, devices_16_bits=4, usd_16_bits=22.22),
        given(exactly("4.15", "a token of 7B is 4 times cheaper than of 70B, by the speeds of claim 4.12", 4),
              "devices * tokens_per_s_small / tokens_per_s_large", "ratio", devices=4, tokens_per_s_small=2800,
              tokens_per_s_large=800),
        given(exactly("4.15", "spot devices at 1.20 in place of 4.00 USD: 70 % saved", 0.7), saved, less=1.2, more=4),
    ]  # fmt: skip
