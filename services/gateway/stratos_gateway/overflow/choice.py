"""One choice of an external answer: its text within bounds, and when its pieces came."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratos_gateway.overflow.call import ExternalCall


@dataclass(slots=True)
class ExternalChoice:
    """Text so far. A piece of text counts as a token, where times are measured."""

    call: ExternalCall
    parts: list[str] = field(default_factory=list)
    num_bytes: int = 0
    num_tokens: int | None = None
    """Tokens of the whole text; ``None`` before it was counted."""
    first_s: float | None = None
    last_s: float = 0.0
    is_started: bool = False
    is_ended: bool = False

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.parts)

    def take(self, text: str) -> tuple[str, bool]:
        """Add a piece; returns what fits of it, and whether that is not all."""
        data = text.encode(errors="replace")
        left = self.call.max_bytes - self.num_bytes if len(self.parts) < self.call.max_pieces else 0
        is_cut = len(data) > left
        fitting = data[:left].decode(errors="ignore") if is_cut else text
        if fitting:
            self.parts.append(fitting)
            self.num_bytes += min(len(data), left)
            self.num_tokens = None
        return fitting, is_cut
