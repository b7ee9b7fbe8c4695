"""A base model as far as text goes: tokenizer, chat template, length limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from stratos.common.errors import BadRequest, ContextLengthExceeded, InvalidCheckpoint
from stratos.core.files.digest import is_digest
from stratos.core.files.embedding_files import read_embedding_config
from stratos.core.files.model_files import ModelFiles, described_files, read_model_files
from stratos.core.requests.limits import (
    MAX_COUNTED_TOKENS,
    MAX_EMBEDDING_TOKENS,
    check_input_lengths,
    check_prompt_length,
)
from stratos.core.requests.tools import Tool
from stratos.engine.checkpoint.quantisation_config import weights_label
from stratos.text.chat_template import PLAIN_USE, ChatMessage, ChatTemplate, TemplateUse, read_template
from stratos.text.encoding_threads import EncodingThreads
from stratos.text.output.chat_format import ChatFormat, chat_format
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.models.base_model import BaseModel
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.score_head import Pair, ScoreHead, read_score_head
from stratos_gateway.models.settings import ModelConfig

INLINE_CHARS = 1024
"""Longer texts are encoded in a thread, so that they do not hold up the streams of others; this many take 0.2 ms."""
_MESSAGE_CHARS = 64
"""Characters of text that take as long as rendering one message."""


@contextmanager
def _too_long_as(param: str) -> Iterator[None]:
    """Name the parameter in the tokenizer's refusal of a huge text."""
    try:
        yield
    except ContextLengthExceeded as error:
        error.param = error.param or param
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Read once, and shared by all requests; a request keeps the one that it began with."""

    base: BaseModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    chat: ChatFormat
    max_input_tokens: int
    grammars: GrammarCheck
    score_head: ScoreHead | None = None
    """How it judges documents; ``None`` when it does not."""
    default_max_tokens: int = 512
    """Output limit of a request that names none."""
    threads: EncodingThreads = field(default_factory=EncodingThreads, compare=False, repr=False)

    @classmethod
    def load(cls, config: ModelConfig) -> ServedModel:
        """Read a model folder; hashes its weights, unless they are not there, or their digest was handed over.

        Raises:
            InvalidCheckpoint: it cannot be served; the message says what to do.
        """
        if is_digest(config.digest) and not any(config.path.glob("*.safetensors")):
            return cls._of(config, described_files(config.path, config.digest))
        return cls._of(config, read_model_files(config.path, config.digest))

    @classmethod
    def load_texts(cls, config: ModelConfig, created_unix_s: int) -> ServedModel:
        """Read a folder that has a model's text files alone; its digest is believed.

        Raises:
            InvalidCheckpoint: it cannot be served; the message says why.
        """
        served = cls._of(config, described_files(config.path, config.digest))
        return replace(served, base=replace(served.base, created_unix_s=created_unix_s))

    @classmethod
    def _of(cls, config: ModelConfig, files: ModelFiles) -> ServedModel:
        path = files.path
        tokenizer = Tokenizer.load(path)
        if tokenizer.vocab_size > files.vocab_size:
            raise InvalidCheckpoint(f"{path}: the tokenizer has more tokens than the model's vocabulary")
        source, head = read_template(path), read_score_head(path, files.config, tokenizer)
        return cls(
            base=BaseModel(
                name=config.served_name,
                digest=files.digest,
                size=config.size,
                max_model_len=config.max_stream_len
                or min(config.max_model_len or files.max_model_len, files.max_model_len),
                vocab_size=files.vocab_size,
                created_unix_s=int((path / "config.json").stat().st_mtime),
                quantization=weights_label(files.config, config.quantization),
                can_generate=files.can_generate,
                can_chat=source is not None,
                can_score=head is not None and files.can_generate,
                embedding=read_embedding_config(files, config.pooling, config.matryoshka),
            ),
            tokenizer=tokenizer,
            template=None if source is None else ChatTemplate(source, tokenizer),
            chat=chat_format(source or ""),
            max_input_tokens=config.max_input_tokens,
            grammars=GrammarCheck(path, files.vocab_size, files.eos_token_ids),
            score_head=head,
            default_max_tokens=config.default_max_tokens,
        )

    def unbounded(self) -> ServedModel:
        """The model without its own bounds on prompts: what is counted or cut may be longer than any prompt."""
        base = replace(self.base, max_model_len=MAX_COUNTED_TOKENS + 1)
        return replace(self, base=base, max_input_tokens=MAX_COUNTED_TOKENS)

    async def encode_chat(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), use: TemplateUse = PLAIN_USE
    ) -> tuple[int, ...]:
        """Ids of a conversation, with the tools that the model is told of.

        Raises:
            BadRequest: empty, too long, or refused by the template.
        """
        if self.template is None:
            raise BadRequest("this model has no chat template; use /v1/completions", param="messages")
        template, chat = self.template, self.chat
        messages = chat.written(messages, tools)
        told = tools if chat.is_native else ()
        text = "".join(text for message in messages for text in message.texts)
        is_short = not tools and len(text) + _MESSAGE_CHARS * len(messages) <= INLINE_CHARS
        return await self._encode(text, lambda: template.encode(messages, told, use), "messages", is_short=is_short)

    async def encode_before(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], use: TemplateUse, signs: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """Ids of what a conversation that was encoded begins with, up to some texts in it; how many are before each.

        Raises:
            BadRequest: refused by the template.
        """
        assert self.template is not None, "it was encoded"
        told = tools if self.chat.is_native else ()
        written = self.chat.written(messages, tools)
        return await self.threads.run(partial(self.template.encode_before, written, told, use, signs))

    async def encode_prompt(self, prompt: str | tuple[int, ...], *, adds_special: bool = True) -> tuple[int, ...]:
        """Ids of a plain prompt, which speaks for itself: special tokens in it are read as such.

        A text gets those of the tokenizer besides, with ``adds_special``.

        Raises:
            BadRequest: empty or too long.
        """
        if isinstance(prompt, tuple):
            return self.checked(prompt)
        text = prompt
        is_short = len(text) <= INLINE_CHARS
        encode = partial(self.tokenizer.encode, text, add_special_tokens=adds_special)
        return await self._encode(text, encode, "prompt", is_short=is_short)

    def checked(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids of a plain prompt as they are; raises ``BadRequest`` where they are none, or too many."""
        self._check(len(prompt_ids), "prompt")
        return prompt_ids

    async def encode_pair(self, pair: Pair) -> tuple[int, ...]:
        """Ids of the prompt that asks whether a document answers a query.

        Raises:
            BadRequest: too long, or refused by the template.
        """
        assert self.score_head is not None, "checked with the body"
        text = "".join(pair.texts)
        is_short = len(text) <= INLINE_CHARS
        return await self._encode(text, partial(self.score_head.encode, pair), "prompt", is_short=is_short)

    async def encode_inputs(
        self, inputs: Sequence[str | tuple[int, ...]], *, adds_special: bool = True
    ) -> tuple[tuple[int, ...], ...]:
        """Ids of inputs to embed; with ``adds_special`` texts get the special tokens of the tokenizer.

        Raises:
            BadRequest: one is empty or too long, or all together are.
        """
        texts = [text for text in inputs if isinstance(text, str)]
        self._check_texts(texts)
        is_short = sum(map(len, texts)) <= INLINE_CHARS
        encode = partial(self._encode_texts, inputs, adds_special=adds_special)
        with _too_long_as("input"):
            encoded = encode() if is_short else await self.threads.run(encode)
        check_input_lengths([len(ids) for ids in encoded], self.max_input_tokens, self.base.max_model_len)
        return encoded

    def _check_texts(self, texts: Sequence[str]) -> None:
        """Refuse what is certainly too long before it is tokenised."""
        least = [self.tokenizer.min_num_tokens(text) for text in texts]
        if any(n > self.max_input_tokens for n in least) or sum(least) > MAX_EMBEDDING_TOKENS:
            check_input_lengths([max(n, 1) for n in least], self.max_input_tokens, self.base.max_model_len)

    def _encode_texts(
        self, inputs: Sequence[str | tuple[int, ...]], *, adds_special: bool
    ) -> tuple[tuple[int, ...], ...]:
        encode = partial(self.tokenizer.encode, add_special_tokens=adds_special)
        return tuple(i if isinstance(i, tuple) else tuple(encode(i)) for i in inputs)

    async def _encode(
        self, text: str, encode: Callable[[], list[int]], param: str, *, is_short: bool
    ) -> tuple[int, ...]:
        least = self.tokenizer.min_num_tokens(text)
        if least > self.max_input_tokens:
            message = f"the prompt has at least {least} tokens, the limit is {self.max_input_tokens}"
            raise ContextLengthExceeded(message, param=param)
        with _too_long_as(param):
            ids = tuple(encode()) if is_short else await self.threads.run(lambda: tuple(encode()))
        self._check(len(ids), param)
        return ids

    def _check(self, num_tokens: int, param: str) -> None:
        check_prompt_length(num_tokens, self.max_input_tokens, self.base.max_model_len, param)

    def max_tokens_left(self, num_prompt_tokens: int) -> int:
        """Output tokens that the context has room for after a prompt."""
        return self.base.max_model_len - num_prompt_tokens
