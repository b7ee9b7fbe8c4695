#!/usr/bin/env python3
"""Write what is made from the tables of stratos.observe: dashboards and rules of the chart, and docs/runbooks.

python -m scripts.chart.generate_dashboards          rewrite all
python -m scripts.chart.generate_dashboards --check  exit 1 when one is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from stratos.observe.alerts.table import ALERTS
from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.grafana import grafana_json
from stratos.observe.rule_files import rules_text
from stratos.observe.runbooks import runbook, runbook_index

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy" / "helm" / "stratosserve" / "files"
RUNBOOKS = ROOT / "docs" / "runbooks"
_HEAD = "# Made by scripts/chart/generate_dashboards.py; not to be edited.\n"


def generated() -> dict[Path, str]:
    """Content by file."""
    made = {FILES / "rules.yaml": _HEAD + rules_text(), RUNBOOKS / "README.md": runbook_index()}
    for dashboard in DASHBOARDS:
        text = json.dumps(grafana_json(dashboard), indent=1, ensure_ascii=False) + "\n"
        made[FILES / "dashboards" / f"{dashboard.uid}.json"] = text
    return made | {RUNBOOKS / f"{alert.name}.md": runbook(alert) for alert in ALERTS}


def stale() -> list[Path]:
    """Files that differ from what they should hold, and files that nothing makes any more."""
    made = generated()
    there = {*RUNBOOKS.glob("*.md"), *(FILES / "dashboards").glob("*.json")}
    differing = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return sorted({*differing, *(there - made.keys())})


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a file is out of date")
    old = stale()
    if parser.parse_args().check:
        for path in old:
            print(f"{path.relative_to(ROOT)} is out of date: run `make manifests`", file=sys.stderr)
        return 1 if old else 0
    made = generated()
    for path in old:
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
