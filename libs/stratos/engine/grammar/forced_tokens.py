"""Tokens that a grammar forces, by the tokens before them: learned from masks of one token, shared by its requests.

The mask of a forced token costs ten times that of a free one, since llguidance cuts the whole forced text into tokens
to find it; and calls of a tool begin with the same text in every answer.  A mask follows from the grammar and the
tokens so far alone, so the one that was computed once holds for every other request at the same place.
"""

from __future__ import annotations

UNKNOWN, SEVERAL = -1, -2
"""No mask was seen at this place; it allows more than one token, or none."""
MAX_PLACES = 1024
"""Of one grammar, some 200 bytes each; the next one forgets them all."""
MAX_SEVERAL = 3
"""Free tokens in a row after which a request leaves: the text is its own from here on."""


class ForcedPlace:
    """A place in the output of a grammar."""

    __slots__ = ("following", "token")

    def __init__(self) -> None:
        self.token = UNKNOWN
        self.following: dict[int, ForcedPlace] = {}


class ForcedTokens:
    """Places of one grammar.

    Args:
        max_places: kept at once.
    """

    __slots__ = ("_max_places", "_num_places", "first")

    def __init__(self, max_places: int = MAX_PLACES) -> None:
        self.first = ForcedPlace()
        self._max_places, self._num_places = max_places, 1

    def after(self, place: ForcedPlace, token_id: int) -> ForcedPlace:
        """The place behind a token."""
        following = place.following.get(token_id)
        if following is None:
            if self._num_places >= self._max_places:
                self.first, self._num_places = ForcedPlace(), 1  # paths that have begun end with their requests
            following = place.following[token_id] = ForcedPlace()
            self._num_places += 1
        return following


class ForcedPath:
    """Where one choice is among the places of its grammar, from the beginning until its text is its own."""

    __slots__ = ("_num_several", "_place", "_tokens")

    def __init__(self, tokens: ForcedTokens, place: ForcedPlace | None = None, num_several: int = 0) -> None:
        self._tokens, self._num_several = tokens, num_several
        self._place = tokens.first if place is None else place

    @property
    def token(self) -> int:
        """The token that must follow, ``SEVERAL`` or ``UNKNOWN``."""
        return self._place.token

    def learn(self, token: int) -> None:
        """A mask was computed here: it allows ``token`` alone, or ``SEVERAL``."""
        self._place.token = token

    def after(self, token_id: int) -> ForcedPath | None:
        """The path behind a token; ``None`` where it ends."""
        num_several = self._num_several
        if self.token != UNKNOWN:
            num_several = num_several + 1 if self.token == SEVERAL else 0
        if num_several > MAX_SEVERAL:
            return None
        return ForcedPath(self._tokens, self._tokens.after(self._place, token_id), num_several)

    def ahead(self) -> list[int]:
        """Tokens that must follow one another from here on, as far as they are known."""
        found, place = list[int](), self._place
        while place.token >= 0:
            found.append(place.token)
            following = place.following.get(place.token)
            if following is None:
                break
            place = following
        return found
