"""Prompt templates of a tenant, and policies of the content that may come in and go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

MAX_TEMPLATE_CHARS = 16_384
"""Of one text of a template."""
MAX_VERSIONS = 200
Source = Annotated[str, MinLen(1), MaxLen(MAX_TEMPLATE_CHARS)]
RuleId = Annotated[str, MinLen(1), MaxLen(64)]
Word = Annotated[str, MinLen(1), MaxLen(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
    """One message of a template for chats."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    role: Literal["system", "user", "assistant"]
    text: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVersion:
    """One version of a template, which never changes: a prompt for /v1/completions, or messages for chats."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    text: Source | None = None
    messages: Annotated[tuple[PromptMessage, ...], MaxLen(64)] = ()
    """They come before those of the request."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of variables that a request may leave out."""

    @property
    def sources(self) -> tuple[str, ...]:
        """All of its texts."""
        return ((self.text,) if self.text is not None else ()) + tuple(message.text for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A named template; a request without a version gets the highest one."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    versions: Annotated[Mapping[int, PromptVersion], MinLen(1), MaxLen(MAX_VERSIONS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPolicy:
    """Policy for the text of a tenant's requests and answers: patterns to look for, and what follows from a hit."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    shipped: tuple[str, ...] = ()
    """Groups of rules that come with the platform."""
    words: Annotated[Mapping[RuleId, Annotated[tuple[Word, ...], MaxLen(5000)]], MaxLen(200)] = field(
        default_factory=dict
    )
    """Rule id -> words and phrases, found where no letter or digit touches them, in any case."""
    patterns: Annotated[Mapping[RuleId, Annotated[str, MinLen(1), MaxLen(1000)]], MaxLen(200)] = field(
        default_factory=dict
    )
    """Rule id -> regular expression of RE2, which takes linear time on any text."""
    checks_input: bool = True
    checks_output: bool = True
    classifier_threshold: Annotated[float, Gt(0), Le(1)] | None = None
    """From this score of the gateway's classifier on a text is a hit; ``None`` does not ask it."""
    classifier_block_chars: Annotated[int, Ge(32), Le(8192)] = 256
    """Output is classified in blocks of so many characters, each one before it is shown."""
    fails_open: bool = False
    """Text that cannot be checked passes; else it is refused."""
    window_chars: Annotated[int, Ge(16), Le(1024)] = 64
    """How much of a stream's end is held back: longer matches of patterns are not found."""
    replacement: Annotated[str, MinLen(1), MaxLen(500)] = "[removed by the content policy]"
    """Stands in place of output that has a hit."""

    @property
    def is_active(self) -> bool:
        """It looks for anything."""
        return bool(self.shipped or self.words or self.patterns or self.classifier_threshold is not None)
