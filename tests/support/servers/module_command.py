"""Commands that run modules of the tests as processes, which work in any folder that pytest is started from."""

from __future__ import annotations

import sys

from tests.support.paths import ROOT


def module_command(module: str) -> tuple[str, ...]:
    """As ``python -m module``, with the root of the checkout on the path; arguments may follow."""
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return (sys.executable, "-c", code)
