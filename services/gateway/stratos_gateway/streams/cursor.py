"""Ids of events: where a client stands in an answer, so that any gateway goes on right there.

    <tag>.<events>.<units>                        after whole chunks
    <tag>.<events>.<units>.<choice>-<size>-<n>    after n events of the chunk of that choice that follows, of that size
    <tag>.<events>.<units>.e<n>                   after n events of the end
    <tag>.z                                       after everything

Units are tokens of each choice, and one more for its end, joined by "-".  A place in the content, rather than a number
of events, holds also where the tokens behind it were not recorded and come in other pieces the second time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratos_gateway.streams.asking import bad_cursor

_FORM = re.compile(r"([0-9a-f]{12})\.(?:(z)|(\d{1,9})\.(\d{1,9}(?:-\d{1,9})*)(?:\.(?:(\d+)-(\d+)-(\d+)|e(\d+)))?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where a client stands."""

    num_events: int = 0
    seen: tuple[int, ...] = ()
    """Units of each choice."""
    part: tuple[int, int, int] | None = None
    """Choice, units and events so far of a chunk that it has in part."""
    num_end: int = 0
    """Events of the end."""
    is_whole: bool = False
    num_skipped: int = 0
    """Events that the client has, where it counts those of a record that has no other pieces."""

    def cuts(self, choice: int) -> list[int]:
        """Counts of tokens at which chunks of a choice must end."""
        if not self.seen:
            return []
        cuts = [self.seen[choice]]
        if self.part is not None and self.part[0] == choice:
            cuts.append(self.seen[choice] + self.part[1])
        return [cut for cut in cuts if cut]


FROM_THE_START = Cursor()


def parse_cursor(text: str, tag: str, num_choices: int) -> Cursor:
    """Read the id of an event; "" is the beginning.

    Raises:
        BadRequest: it is not of this stream.
    """
    if not text:
        return FROM_THE_START
    found = _FORM.fullmatch(text)
    if found is None or found[1] != tag:
        raise bad_cursor()
    if found[2]:
        return Cursor(is_whole=True)
    seen = tuple(map(int, found[4].split("-")))
    part = None if found[5] is None else (int(found[5]), int(found[6]), int(found[7]))
    if len(seen) != num_choices or (part is not None and part[0] >= num_choices):
        raise bad_cursor()
    return Cursor(num_events=int(found[3]), seen=seen, part=part, num_end=int(found[8] or 0))
