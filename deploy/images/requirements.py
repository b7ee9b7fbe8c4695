"""Prints what the named extras of pyproject.toml need: ``requirements.py gateway,otlp``.

Dependencies are installed before the sources are there, so that a change of the sources does not install them again.
``--alone`` leaves out what the project itself depends on.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_OWN = re.compile(r"^stratosserve\[(?P<extras>[\w,-]+)\]$")


def requirements(extras: list[str], path: Path = Path("pyproject.toml"), *, is_alone: bool = False) -> list[str]:
    """The dependencies of ``extras``, extras of extras included, and unless ``is_alone`` the project's own; sorted."""
    project = tomllib.loads(path.read_text())["project"]
    found, waiting = set() if is_alone else set(project["dependencies"]), list(extras)
    while waiting:
        for requirement in project["optional-dependencies"][waiting.pop()]:
            if own := _OWN.match(requirement):
                waiting.extend(own["extras"].split(","))
            else:
                found.add(requirement)
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1].split(","), is_alone="--alone" in sys.argv[2:])))
