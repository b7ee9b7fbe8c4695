"""Process of one evaluation: reads what is asked as JSON, and writes the report.

python -m stratos.quality ask.json report.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stratos.common.errors import StratosError
from stratos.engine.settings import RunnerConfig
from stratos.quality.evaluation import EvaluationAsk, evaluate
from stratos.quality.verdict import LossBounds


def main() -> int:
    """Evaluate; an error of ours is one line, and exit code 1."""
    asked, out = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        report = evaluate(_parse(json.loads(asked.read_text(encoding="utf-8"))), _say)
    except StratosError as error:
        _say(f"error: {error.message}")
        return 1
    out.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


def _parse(asked: dict[str, Any]) -> EvaluationAsk:
    for name in ("reference", "candidate"):
        settings = asked[name]
        asked[name] = RunnerConfig(**{**settings, "model_path": Path(settings["model_path"])})
    asked["text_paths"] = tuple(Path(path) for path in asked["text_paths"])
    asked["bounds"] = LossBounds(**asked["bounds"])
    return EvaluationAsk(**asked)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
