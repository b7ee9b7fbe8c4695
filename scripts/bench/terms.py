"""Terms of a platform that `stratos up` has started, changed by its own command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson


def apply_terms(data_dir: Path, terms: Mapping[str, Any]) -> None:
    """Make plans, policies and tenants as a declaration says.

    Args:
        data_dir: of the platform.
        terms: the declaration; the first tenant is named ``default``, and has the plan ``local``.
    """
    program, told = str(Path(sys.executable).with_name("stratos")), ["--data-dir", str(data_dir)]
    create = [program, "keys", "create", "--tenant", "platform", "--role", "admin", *told]
    shown = subprocess.run(create, check=True, capture_output=True, text=True).stdout
    (key,) = re.findall(r"sk-[0-9a-f-]+", shown)
    file = data_dir / "terms.json"
    file.write_bytes(orjson.dumps(terms))
    apply = [program, "admin", "apply", "-f", str(file), "--wait-s", "20", *told]
    subprocess.run(apply, check=True, env={**os.environ, "STRATOS_ADMIN_KEY": key})
