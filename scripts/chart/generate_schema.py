#!/usr/bin/env python3
"""Write what the chart checks values with (schema, names, the kind Model), from values.yaml and the services' settings.

python -m scripts.chart.generate_schema          rewrite them
python -m scripts.chart.generate_schema --check  exit 1 when one is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from scripts.chart.schema.definitions import definitions
from scripts.chart.schema.model_resource import model_definition
from scripts.chart.schema.settings import variables
from scripts.chart.schema.values import schema_of_values
from stratos.routing.policy.settings import NAMED

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "stratosserve"


def generated(chart: Path = CHART) -> dict[Path, str]:
    """File -> what it should hold."""
    values = schema_of_values((chart / "values.yaml").read_text(encoding="utf-8"))
    values["properties"]["global"] = {"type": "object"}  # Helm adds it where the chart is part of another one
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **values, "definitions": definitions(values)}
    return {
        chart / "values.schema.json": _json(schema),
        chart / "files" / "settings.json": _json(variables()),
        chart / "files" / "policies.json": _json(sorted(NAMED)),
        chart / "files" / "model-crd.json": _json(model_definition(schema)),
    }


def _json(content: dict[str, Any] | list[str]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a file is out of date")
    is_check = parser.parse_args().check
    stale = {path: text for path, text in generated().items() if not path.is_file() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if is_check:
            print(
                f"{path.relative_to(ROOT)} is out of date: run python -m scripts.chart.generate_schema", file=sys.stderr
            )
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main())
