"""Shell blocks of a document that name themselves for a test.

    <!-- run: install -->
    ```bash
    helm install ...
    ```

A block that no test can run says so in the same place: ``<!-- not run: needs a load balancer -->``.
"""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"(?:<!-- (?P<mark>run|not run): (?P<name>[^\n]*?) -->\n)?```bash\n(?P<code>.*?)```", re.DOTALL)


def section(path: Path, heading: str) -> str:
    """The text below a heading of the second level, up to the next one."""
    parts = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def shell_blocks(text: str) -> dict[str, str]:
    """Name -> code of the blocks that are marked to be run.

    Raises:
        ValueError: a block says neither that it is run nor why it is not.
    """
    found = {}
    for match in _BLOCK.finditer(text):
        if match["mark"] is None:
            raise ValueError(f"is it run, and where? {match['code'][:80]!r}")
        if match["mark"] == "run":
            found[match["name"]] = match["code"]
    return found
