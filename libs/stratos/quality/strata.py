"""Strata: groups of tokens that are looked at alone, since a mean hides what a few of them lose.

Quantised models lose first where a name must be copied from the context, or where the float model was unsure.  Each
stratum is a mask over all scored tokens; a token is in one stratum of every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stratos.quality.held_out import TokenWindow
from stratos.text.tokenizer import Tokenizer

NUM_QUARTILES = 4
_QUARTILE_NAMES = ("least certain quarter", "less certain quarter", "more certain quarter", "most certain quarter")
Mask = np.ndarray
"""bool [windows, tokens scored in each]."""


def token_kind(text: str) -> str:
    """Kind of a token by its text alone: space, name, number, punctuation, or mixed."""
    core = text.strip()
    if not core:
        return "space"
    if core.replace("_", "").isalnum() or core.strip("_") == "":
        return "number" if core[0].isdigit() else "name"
    return "mixed" if any(char.isalnum() for char in core) else "punctuation"


def all_strata(
    windows: Sequence[TokenWindow], tokenizer: Tokenizer, certainty: np.ndarray
) -> Iterator[tuple[str, Mask]]:
    """(name, mask) of every stratum, the one of all tokens first; strata without tokens are left out.

    Args:
        windows: of equal length.
        tokenizer: that made them.
        certainty: float [windows, tokens scored], log probability of the float model's likeliest token.
    """
    ids = np.array([window.token_ids for window in windows], dtype=np.int64)
    kinds = {int(token): token_kind(tokenizer.decode([int(token)], skip_special=False)) for token in np.unique(ids)}
    kind = np.vectorize(kinds.__getitem__, otypes=[object])(ids)[:, 1:]
    seen = np.array([_seen_before(window.token_ids) for window in windows])[:, 1:]
    is_name = kind == "name"
    texts = np.array([window.text_name for window in windows])
    bounds = np.quantile(certainty, [0.25, 0.5, 0.75])
    quartile = np.searchsorted(bounds, certainty, side="right")
    everything = np.ones(kind.shape, dtype=np.bool_)
    found = [("all", everything)]
    found += [(f"text: {name}", (texts == name)[:, None] & everything) for name in sorted(set(texts))]
    found += [(f"kind: {name}", kind == name) for name in sorted(set(kinds.values()))]
    found += [("names: seen before", is_name & seen), ("names: new", is_name & ~seen)]
    found += [(f"certainty: {name}", quartile == number) for number, name in enumerate(_QUARTILE_NAMES)]
    return ((name, mask) for name, mask in found if mask.any())


def _seen_before(ids: Sequence[int]) -> list[bool]:
    """Whether the window had a token before, for each."""
    before: set[int] = set()
    found = []
    for token in ids:
        found.append(token in before)
        before.add(token)
    return found
