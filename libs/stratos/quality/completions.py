"""Completions that parse: heads of Python functions out of held-out text, and whether what follows is Python.

A completion is cut at its last whole line, and parses where it is Python or the beginning of it.  Other languages have
no prompts here, and this stratum is then left out.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from codeop import compile_command
from collections.abc import Sequence

from stratos.quality.held_out import HeldOutText

_HEAD = re.compile(r"^[ \t]*(?:async )?def \w+\([^()\n]*\)(?: -> [\w.\[\], |]+)?:[ \t]*$", re.MULTILINE)


def function_heads(texts: Sequence[HeldOutText], max_prompts: int) -> list[str]:
    """Heads of functions, each once, spread evenly over all of them; with the end of their line."""
    heads = list(dict.fromkeys(textwrap.dedent(found.group()) for text in texts for found in _HEAD.finditer(text.text)))
    wanted = min(max_prompts, len(heads))
    return [f"{heads[number * len(heads) // wanted]}\n" for number in range(wanted)]


def parses(prompt: str, completion: str) -> bool:
    """The whole lines of a completion go on as Python; one without a whole line does not."""
    whole = completion[: completion.rfind("\n") + 1]
    if not whole.strip():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            compile_command(prompt + whole, symbol="exec")  # gives nothing for text that only needs to go on
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return True
