"""A text that arrives in pieces, shown as soon as no rule can match in it any more.

However the text is cut, the same part of it is shown and the same hit is found: a hit has at most ``max_chars``
characters, so what lies further back than that from the end of the text is safe.
"""

from __future__ import annotations

from stratos.text.filtering.rules import Hit, Rules


class TextWindow:
    """State of one text.

    Args:
        rules: what is looked for.
    """

    def __init__(self, rules: Rules) -> None:
        self.hit: Hit | None = None
        """Once there is one, nothing more is shown."""
        self._rules = rules
        self._held = ""
        self._start = 0
        """Characters of the text before ``_held``, all of them shown or too far back to matter."""
        self._num_checked = 0
        """Of ``_held``: no hit ends there."""
        self._num_shown = 0
        """Of ``_held``: kept for one look back."""

    def feed(self, text: str, *, is_last: bool = False) -> str:
        """Add a piece; returns what may be shown now.

        After a hit, or the last piece, the window must not be fed again.
        """
        assert self.hit is None, "a text ends with its first hit"
        self._held += text
        found = self._rules.first_hit(self._held, self._num_checked, is_whole=is_last)
        if found is not None:
            shown = self._held[self._num_shown : found.begin]
            self.hit = Hit(self._start + found.begin, self._start + found.end, found.rule)
            self._held = ""
            return shown
        self._num_checked = len(self._held) if is_last else max(self._num_checked, len(self._held) - 1)
        safe = len(self._held) if is_last else max(self._num_shown, self._num_checked - self._rules.max_chars)
        shown = self._held[self._num_shown : safe]
        self._num_shown = safe
        self._forget()
        return shown

    def _forget(self) -> None:
        """Drop what no hit can reach; one character more stays, which says whether a word begins after it."""
        drop = self._num_shown - 1
        if drop > 0:
            self._held = self._held[drop:]
            self._start += drop
            self._num_checked -= drop
            self._num_shown = 1
