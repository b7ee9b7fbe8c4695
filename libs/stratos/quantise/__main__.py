"""Process of one run: reads what is asked as JSON, and writes what was done.

python -m stratos.quantise ask.json report.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stratos.common.errors import StratosError
from stratos.quantise.asking import QuantiseAsk
from stratos.quantise.run import quantise

BAR = 30


def main() -> int:
    """Quantise; an error of ours is one line, and exit code 1."""
    asked, out = Path(sys.argv[1]), Path(sys.argv[2])
    content = json.loads(asked.read_text(encoding="utf-8"))
    paths = {"model_path": Path(content["model_path"]), "out": Path(content["out"])}
    texts = tuple(Path(path) for path in content["text_paths"])
    try:
        report = quantise(QuantiseAsk(**{**content, **paths, "text_paths": texts}), _say, _show)
    except StratosError as error:
        _say(f"error: {error.message}")
        return 1
    except OSError as error:  # the disk is full, say; the run goes on where it is asked again
        _say(f"error: {error}")
        return 1
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _show(done: int, total: int, seconds: float) -> None:
    """A bar on a terminal, else a line for each layer."""
    text = f"layer {done} of {total}, {seconds:.1f} s, {seconds * (total - done):.0f} s left"
    if not sys.stderr.isatty():
        _say(text)
        return
    bar = "#" * (BAR * done // total)
    sys.stderr.write(f"\r[{bar:<{BAR}}] {text:<40}" + ("\n" if done == total else ""))
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
