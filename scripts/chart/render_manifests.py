#!/usr/bin/env python3
"""Write deploy/k8s/NAME.yaml, the chart's objects for the values in deploy/k8s/NAME.values.yaml.

python -m scripts.chart.render_manifests          rewrite all
python -m scripts.chart.render_manifests --check  exit 1 when one is out of date; without a renderer say so and exit 0
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from scripts.chart.rendering import NO_RENDERER, ROOT, has_renderer, render

FOLDER = ROOT / "deploy" / "k8s"
RELEASE, NAMESPACE = "stratosserve", "stratosserve"
_HEAD = "# Made by `make manifests` from {source} and the chart; not to be edited.\n"


def presets(folder: Path = FOLDER) -> list[Path]:
    """The values files."""
    return sorted(folder.glob("*.values.yaml"))


def rendered(values_file: Path) -> str:
    """The manifest of a values file: no hooks, since nothing but Helm runs them when it should."""
    values: dict[str, Any] = yaml.safe_load(values_file.read_text(encoding="utf-8"))
    objects = [o for o in render(values, release=RELEASE, namespace=NAMESPACE) if not _is_hook(o)]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=120, allow_unicode=True)
    return _HEAD.format(source=values_file.name) + text


def target_of(values_file: Path) -> Path:
    """Where its manifest is."""
    return values_file.with_name(values_file.name.replace(".values.yaml", ".yaml"))


def _is_hook(found: dict[str, Any]) -> bool:
    return "helm.sh/hook" in (found["metadata"].get("annotations") or {})


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a file is out of date")
    is_check = parser.parse_args().check
    if not has_renderer():
        print(f"deploy/k8s is not checked: {NO_RENDERER}", file=sys.stderr)
        return 0 if is_check else 1
    stale = 0
    for values_file in presets():
        target, text = target_of(values_file), rendered(values_file)
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if is_check:
            print(f"{target.relative_to(ROOT)} is out of date: run make manifests", file=sys.stderr)
        else:
            target.write_text(text, encoding="utf-8")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
