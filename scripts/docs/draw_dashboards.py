#!/usr/bin/env python3
"""Draw every dashboard from the same queries that Grafana would make, into docs/dashboards: SVG, no Grafana needed.

python -m scripts.docs.draw_dashboards http://127.0.0.1:PORT [--minutes 10] [--out docs/dashboards]

The address is that of a Prometheus that watched a platform, such as the one of `stratos up --observe`. A panel whose
query has no result says so in the picture.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from scripts.docs.dashboard_pictures.page import draw_page
from scripts.docs.dashboard_pictures.series import Series, legend_of
from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.panels import Query

ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 120
WINDOW = "30s"
LOCAL = "a platform under a made load, with a recorded exposition for the panels of a GPU and of a memory's bandwidth"
_INDEX = """# Dashboards

Drawn by `python -m scripts.docs.draw_dashboards` from the queries of the chart's dashboards, over {minutes} minutes
of {about} ({when}).
No Grafana server opened them: colours and places are those of the script. Panels without data say so.

"""


def read(url: str, query: Query, begin_s: float, end_s: float) -> list[Series]:
    """Result of a query over a time."""
    step = (end_s - begin_s) / NUM_STEPS
    arguments = {"query": query.scoped('release=~".*"', WINDOW), "start": begin_s, "end": end_s, "step": step}
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(arguments)}", timeout=30) as answer:
        result: list[dict[str, Any]] = json.loads(answer.read())["data"]["result"]
    return [
        Series(legend_of(query.legend, found["metric"]), tuple((float(t), float(v)) for t, v in found["values"]))
        for found in result
    ]


def main() -> int:
    """Draw all pages; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a Prometheus")
    parser.add_argument("--minutes", type=float, default=10.0, help="how much of the past is drawn")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "dashboards", help="folder of the pictures")
    parser.add_argument("--about", default=LOCAL, help="what was watched, for the page that shows the pictures")
    arguments = parser.parse_args()
    end_s = time.time()
    begin_s = end_s - arguments.minutes * 60
    arguments.out.mkdir(parents=True, exist_ok=True)
    index = _INDEX.format(
        about=arguments.about, minutes=f"{arguments.minutes:g}", when=time.strftime("%Y-%m-%d", time.gmtime(end_s))
    )
    for page in DASHBOARDS:
        found = {
            panel.title: [s for q in panel.queries for s in read(arguments.url, q, begin_s, end_s)]
            for panel in page.panels
        }
        picture = arguments.out / f"{page.uid}.svg"
        picture.write_text(draw_page(page, found, (begin_s, end_s)), encoding="utf-8")
        empty = [title for title, series in found.items() if not series]
        print(
            f"{picture.name}: {len(page.panels) - len(empty)} of {len(page.panels)} panels", *empty, sep="\n  empty: "
        )
        index += f"## {page.title}\n\n![{page.title}]({picture.name})\n\n"
    (arguments.out / "README.md").write_text(index.rstrip("\n") + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
