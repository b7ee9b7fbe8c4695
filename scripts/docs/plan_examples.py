"""Run the examples of ``stratos plan`` in the documents and write what they print below them.

python -m scripts.docs.plan_examples          rewrite the documents
python -m scripts.docs.plan_examples --check  exit 1 when one is out of date

An example is a ``console`` block whose first line is ``$ stratos plan ...``.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from stratos.cli.commands.plan.app import plan_app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("docs/capacity.md", "docs/economics.md")
_EXAMPLE = re.compile(r"```console\n\$ stratos plan (?P<arguments>(?:[^\n]*\\\n)*[^\n]*)\n.*?```", re.DOTALL)


def with_output(text: str) -> str:
    """The document with what its examples print today."""
    return _EXAMPLE.sub(_run, text)


def _run(example: re.Match[str]) -> str:
    arguments = example["arguments"]
    done = CliRunner().invoke(plan_app, shlex.split(arguments.replace("\\\n", " ")))
    lines = "\n".join(line.rstrip() for line in done.output.strip().splitlines())
    return f"```console\n$ stratos plan {arguments}\n{lines}\n```"


def main() -> int:
    """Rewrite or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a document is out of date")
    is_check, stale = parser.parse_args().check, 0
    for path in (ROOT / name for name in DOCUMENTS):
        text = path.read_text(encoding="utf-8")
        if (fresh := with_output(text)) != text:
            stale += 1
            if not is_check:
                path.write_text(fresh, encoding="utf-8")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
