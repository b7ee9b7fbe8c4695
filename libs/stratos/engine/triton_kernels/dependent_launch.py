"""Programmatic dependent launch: a kernel is launched while the one before it on the stream still runs (from sm_90 on).

The law: a kernel that is launched so waits before its first access to memory.  The wait ends when the kernel before has
ended, with all that it wrote; since that one had waited itself, everything before it has ended, too, and any memory may
be read, or written over.  Only then the next kernel may come; one that is launched the plain way comes after the end.
Captured launches keep this: the graph gets edges of the same kind.
"""

from typing import Any

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous():
    """First statement of a kernel with ``HAS_PDL``."""
    gdc_wait()
    gdc_launch_dependents()


def launch_options(has_pdl: bool) -> dict[str, Any]:
    """Keyword arguments of a launch; off, those of a plain one."""
    return {"HAS_PDL": True, "launch_pdl": True} if has_pdl else {"HAS_PDL": False}
