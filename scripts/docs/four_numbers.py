"""The README's four numbers, made from the committed report of ``make reproduce``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REPORT = "reproduce-full-epyc-bf16-2core-cpu.json"
BEGIN, END = "<!-- four numbers -->", "<!-- end of four numbers -->"
_MARKED = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)


def with_numbers(text: str, rows: Mapping[str, Any]) -> str:
    """The README with the numbers of a report's rows."""
    return _MARKED.sub(lambda _: "\n".join([BEGIN, *_lines(rows), END]), text)


def _lines(rows: Mapping[str, Any]) -> list[str]:
    owns = {own["name"]: own["value"] for answer in rows["kv-concurrency"]["answers"] if (own := answer["own"])}
    peers, switched = _table(rows["peers"]), _table(rows["all-on"])
    off, on = switched["all off"], switched["all on"]
    num_requests = rows["all-on"]["tables"][0]["title"].split()[0]
    torch, ours = (peers[way]["tokens_per_s"] for way in ("torch, static batches", "ours"))
    lines = [
        ("requests at once in 54 GB of KV, blocks against slots of the whole context (simulated)",
         f"{owns['running_paged']:.0f}", f"{owns['running_in_slots']:.0f}",
         owns["running_paged"] / owns["running_in_slots"]),
        ("tokens/s, against plain torch in static batches of 8", f"{ours:,.0f}", f"{torch:,.0f}",
         ours / torch),
        ("tokens/s of a queue, four optimisations on against off", f"{on['tokens_per_s']:,.0f}",
         f"{off['tokens_per_s']:,.0f}", on["tokens_per_s"] / off["tokens_per_s"]),
        (f"slowest TTFT of {num_requests} requests in ms, the same arrivals, on against off",
         f"{on['ttft_p99_ms']:,.0f}", f"{off['ttft_p99_ms']:,.0f}", off["ttft_p99_ms"] / on["ttft_p99_ms"]),
    ]  # fmt: skip
    return [
        "| | StratosServe | beside it | gain |",
        "|---|---|---|---|",
        *(f"| {what} | {here} | {there} | {gain:.1f}x |" for what, here, there, gain in lines),
    ]


def _table(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """First table of a row: cells by column, by the first cell."""
    table = row["tables"][0]
    return {cells[0]: dict(zip(table["columns"], cells, strict=True)) for cells in table["rows"]}
