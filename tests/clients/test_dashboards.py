"""The dashboards by Grafana's own types (`@grafana/schema`). No Grafana opens them here."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.grafana import grafana_json
from tests.support.paths import ROOT

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
MODULES = ROOT / ".agents" / "node_modules"
RAW = "@grafana/schema/dist/esm/raw/composable"
TYPES = f"""
import type {{ Dashboard, DataQuery, Panel }} from "@grafana/schema";
import type {{ Options as Stat }} from "{RAW}/stat/panelcfg/x/StatPanelCfg_types.gen";
import type {{ Options as Curves }} from "{RAW}/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// In JSON a member of an enumeration is its text. Options that a panel leaves out have Grafana's defaults.
type Json<T> = T extends string ? `${{T}}` : T extends (infer U)[] ? Json<U>[]
  : T extends object ? {{ [K in keyof T]: Json<T[K]> }} : T;
type Options<T> = T extends string ? `${{T}}` : T extends (infer U)[] ? Options<U>[]
  : T extends object ? {{ [K in keyof T]?: Options<T[K]> }} : T;
interface PromQuery extends DataQuery {{ expr: string; legendFormat?: string }}
interface Of<K extends string, O> extends Omit<Json<Panel>, "type" | "options" | "targets"> {{
  type: K; options: Options<O>; targets: Json<PromQuery>[];
}}
type Page = Omit<Json<Dashboard>, "panels"> & {{ panels: (Of<"stat", Stat> | Of<"timeseries", Curves>)[] }};
"""


def refusals(folder: Path, pages: list[dict[str, Any]]) -> list[str]:
    """What TypeScript says against these pages."""
    (folder / "node_modules").symlink_to(MODULES)
    checks = [f"const page{place}: Page = {json.dumps(page)};" for place, page in enumerate(pages)]
    (folder / "pages.ts").write_text("\n".join([TYPES.strip(), *checks]))
    done = subprocess.run(
        [MODULES / ".bin" / "tsc", "--noEmit", "--strict", "--skipLibCheck", "--target", "es2022",
         "--module", "nodenext", "--moduleResolution", "nodenext", "--pretty", "false", "pages.ts"],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if "error TS" in line]


def test_every_dashboard_is_one_of_grafanas(tmp_path: Path) -> None:
    assert refusals(tmp_path, [grafana_json(page) for page in DASHBOARDS]) == []


def test_what_grafana_does_not_know_is_refused(tmp_path: Path) -> None:
    """The control: each fault is found, and nothing else."""
    page = grafana_json(DASHBOARDS[0])
    kinds = {panel["type"]: place for place, panel in enumerate(page["panels"])}
    faults: list[tuple[tuple[Any, ...], Any]] = [
        (("panels", kinds["stat"], "options", "colorMode"), "rainbow"),
        (("panels", kinds["timeseries"], "options", "legend", "placement"), "above"),
        (("panels", kinds["timeseries"], "type"), "time-series"),
        (("panels", kinds["timeseries"], "targets", 0, "expression"), "up"),
        (("panels", kinds["stat"], "gridPos", "w"), "6"),
        (("templating", "list", 1, "refresh"), "always"),
        (("timezone",), 7),
    ]
    pages = []
    for path, value in faults:
        wrong = copy.deepcopy(page)
        part: Any = wrong
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value
        pages.append(wrong)
    found = refusals(tmp_path, [page, *pages])
    lines = {int(line.partition("(")[2].partition(",")[0]) for line in found}
    first = len(TYPES.strip().splitlines()) + 1
    assert lines == {first + place for place in range(1, len(faults) + 1)}, found
