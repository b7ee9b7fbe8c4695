"""Fields that all dialects render answers from, and the contract of a renderer: whole answers, and bytes of streams."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from stratos.common.changed import record
from stratos.common.errors import StratosError
from stratos.core.adapter import AdapterRef
from stratos.core.requests.tools import ToolMode
from stratos.text.output.parser import OutputParser, OutputShape
from stratos_gateway.http.sse import KEEP_ALIVE
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.event_bytes import TextTemplate


@record(frozen=True, slots=True, kw_only=True)
class AnswerIdentity:
    """All that an answer's bytes depend on besides the body of its request: what is drawn, resolved or read off a
    clock, once.  Any gateway that is given both generates and renders the same answer."""

    answer_id: str
    created: int
    seed: int
    prompts: tuple[tuple[int, ...], ...]
    model_digest: str
    adapter: AdapterRef
    arrived_unix_ms: int
    """Wall clock of the first gateway: the day of the ledger that the answer is billed in."""
    request_ids: tuple[str, ...] = ()
    """Ids of its generations, one per prompt: what is billed once; empty where each draws its own."""
    epoch: int = 1
    """1 at the gateway that began it, one more at each that took it over."""
    wall_clock: Callable[[], float] | None = None
    """Says when it ended; ``None`` asks the gateway's."""


@record(frozen=True, slots=True, kw_only=True)
class Answer:
    """Fields that all parts of one answer share."""

    id: str
    created: int
    model: str
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    echoes_logprobs: bool
    """The output's log probabilities begin with those of the prompt."""
    return_token_ids: bool
    include_usage: bool
    prompts: Sequence[Sequence[int]]
    """Token ids, one sequence per prompt."""
    num_choices: int
    """Per prompt."""
    continuous_usage: bool = False
    """Events of a stream have the usage so far."""
    names_token_ids: bool = False
    """Log probabilities name tokens by their ids."""
    hides_reasoning: bool = False
    """Reasoning is counted and not shown."""
    shape: OutputShape | None = None
    """Forms that are looked for in the output; ``None`` shows it as it is."""
    tool_mode: ToolMode = ToolMode.NONE
    wall_clock: Callable[[], float] = time.time
    """Seconds since the epoch."""
    prior_texts: Sequence[str] = ()
    """Text that an earlier answer showed of each choice, where this one goes on and something is looked for in it."""

    def parser_of(self, choice: int) -> OutputParser:
        """Parser of a choice's output, of which it has read what an earlier answer showed."""
        assert self.shape is not None, "others look for nothing"
        parser = OutputParser(self.shape)
        if self.prior_texts:
            parser.feed(self.prior_texts[choice])
        return parser

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities of the output are wanted."""
        return self.num_logprobs is not None


class Renderer(ABC):
    """Belongs to one answer.

    Args:
        answer: shared fields.
    """

    keep_alive: bytes = KEEP_ALIVE
    """Sent where a stream is silent for long, once it has begun."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    @abstractmethod
    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer at once, ready for JSON."""

    @abstractmethod
    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Part of a stream for what is new."""

    def token_part(self, token_id: int, text: str) -> bytes | None:
        """``stream_part`` for one token of the only choice, which has begun and goes on; ``None``, and nothing is done,
        where it takes a chunk.

        Args:
            token_id: of the token.
            text: of it, which may be empty.
        """
        return None

    @property
    def token_template(self) -> TextTemplate | None:
        """Cuts of the events that ``token_part`` gives; ``None`` where it gives none, or none yet."""
        return None

    @abstractmethod
    def stream_end(self, usage: Usage) -> bytes:
        """The rest of a stream whose choices have all ended."""

    def hold(self) -> Callable[[], None]:
        """Another thread works with it, until the event loop calls what this returns."""
        return _nothing

    def note_kept(self) -> None:  # noqa: B027 - most note nothing
        """The whole answer is made, and kept where it is to be."""

    def renumber(self, num_events: int) -> None:  # noqa: B027 - most number none
        """Go on as after so many events, in a dialect that numbers them: a client was told of them in other pieces."""

    @abstractmethod
    def stream_failure(self, error: StratosError) -> bytes:
        """The rest of a stream that ends with an error, whether or not anything but comments was sent."""


def _nothing() -> None:
    """Nothing is held."""
