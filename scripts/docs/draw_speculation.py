#!/usr/bin/env python3
"""Draw speed by drafted tokens from the document of ``scripts.bench.speculation``, into docs/pictures: SVG.

python -m scripts.docs.draw_speculation benchmarks/results/speculation-k-2core-cpu.json docs/pictures

One picture for each temperature: the speed that was measured, E / (1 + K r) with the measured r, which takes
verification for free, and E / (pass with K drafts), which has what verification and drafting cost.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from stratos.cli.load.plots.chart import Chart, Series, chart_svg

METHOD = "draft"


def chart_of(row: dict[str, Any], draft_token_ms: float) -> Chart:
    """The curves of one row; a drafted token takes so long where the row does not say."""
    plain_ms = row["off"]["step_ms"]
    arms = {int(name.partition(":")[2]): arm for name, arm in row.items() if name.startswith(f"{METHOD}:")}
    ratio = min(arm.get("draft_token_ms", draft_token_ms) for arm in arms.values()) / plain_ms
    passes = {count: (arm["tokens_per_step"], arm["step_ms"] / plain_ms) for count, arm in sorted(arms.items())}
    speed = [(count, arms[count]["speedup"]) for count in passes]
    free = [(count, tokens / (1 + count * ratio)) for count, (tokens, _) in passes.items()]
    paid = [(count, tokens / cost) for count, (tokens, cost) in passes.items()]
    verified = [(count, cost - count * ratio) for count, (_, cost) in passes.items()]
    return Chart(
        title=f"Held-out code, one stream, temperature {row['temperature']:g}, r = {ratio:.3f}",
        x_label="drafted tokens K",
        y_label="times the speed without drafts",
        series=[
            Series(name="speed, measured", points=[(0, 1.0), *speed]),
            Series(name="E / (1 + K r)", points=[(0, 1.0), *free]),
            Series(name="E / measured pass", points=[(0, 1.0), *paid]),
            Series(name="cost of verifying", points=[(0, 1.0), *verified]),
        ],
    )


def main() -> None:
    """Draw every row that has runs of a fixed K."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draft-token-ms", type=float, default=0.98, help="where the document does not say")
    args = parser.parse_args()
    for row in json.loads(args.document.read_text(encoding="utf-8"))["rows"]:
        path = args.folder / f"speculation-k-{row['temperature']:g}.svg"
        path.write_text(chart_svg(chart_of(row, args.draft_token_ms)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
