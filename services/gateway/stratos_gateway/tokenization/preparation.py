"""Tokens counted and told: all the work of these routes is done while they are made ready, off the event loop.

A text may be longer than any prompt: how long it is, is what the client wants to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stratos.common.errors import ContextLengthExceeded
from stratos.core.requests.limits import MAX_COUNTED_TOKENS
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.answering.request import Prepared
from stratos_gateway.anthropic.requests import parse_message
from stratos_gateway.models.catalogue import Lookup, ModelCatalogue, ModelTarget
from stratos_gateway.models.served_model import INLINE_CHARS, ServedModel
from stratos_gateway.openai.fields import session_of
from stratos_gateway.openai.requests import Conversation
from stratos_gateway.preparation.counts import off_loop
from stratos_gateway.preparation.output_shape import encode_conversation
from stratos_gateway.tokenization.requests import TokenizeBody, parse_detokenize, parse_tokenize


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAnswer(Prepared):
    """A request whose answer needs no worker."""

    answer: Mapping[str, Any]
    """Ready for JSON."""
    dropped: Sequence[str] = ()
    """Fields of its body that mean nothing here."""

    @property
    def ignored(self) -> Sequence[str]:
        """The same."""
        return self.dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounting:
    """Shared by the routes that count tokens.

    Args:
        catalogue: names of models, which a tenant may use or not.
    """

    catalogue: ModelCatalogue

    async def look_up(self, tenant: Tenant, name: object) -> Lookup:
        """The model that is counted for; without a name the gateway's first one, as in vLLM."""
        return await self.catalogue.look_up(tenant, self.catalogue.models.home.base.name if name is None else name)

    async def text_ids(self, model: ServedModel, text: str, *, adds_special: bool) -> Sequence[int]:
        """Ids of a text, in which special tokens are read as such; raises ``ContextLengthExceeded``."""
        tokenizer = model.tokenizer
        if tokenizer.min_num_tokens(text) > MAX_COUNTED_TOKENS:
            raise ContextLengthExceeded(f"the text has more than {MAX_COUNTED_TOKENS} tokens", param="prompt")
        encode = partial(tokenizer.encode, text, add_special_tokens=adds_special)
        try:
            return encode() if len(text) <= INLINE_CHARS else await asyncio.to_thread(encode)
        except ContextLengthExceeded as error:
            error.param = "prompt"
            raise

    async def conversation_ids(self, model: ServedModel, conversation: Conversation) -> Sequence[int]:
        """Ids of a conversation; raises like ``ServedModel.encode_chat``."""
        return await encode_conversation(model.unbounded(), conversation)

    def prepared(
        self,
        name: str,
        target: ModelTarget,
        operation: str,
        texts: Sequence[str],
        answer: Mapping[str, Any],
        dropped: Sequence[str] = (),
    ) -> PreparedAnswer:
        """Facts for the steps: it takes a request of its tenant's limits, and no tokens."""
        return PreparedAnswer(
            model=name,
            operation=operation,
            base_model=target.served.base.name,
            num_tokens=0,
            num_sequences=0,
            texts=texts,
            refusal=partial(self.catalogue.refusal, target),
            answer=answer,
            dropped=dropped,
        )


class TokenizePreparer:
    """Preparation of /tokenize.

    Args:
        counting: shared.
    """

    prompt_param = "prompt"

    def __init__(self, counting: TokenCounting) -> None:
        self._counting = counting

    async def prepare(
        self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = ""
    ) -> PreparedAnswer:
        """Check, resolve and encode; raises ``StratosError`` with the client's answer."""
        counting = self._counting
        lookup = await counting.look_up(tenant, body.get("model"))
        parsed, model = parse_tokenize(body, lookup.served.base.name), lookup.served
        target, prompt = lookup.target, parsed.prompt
        if isinstance(prompt, Conversation):
            ids, texts = await counting.conversation_ids(model, prompt), prompt.texts
        else:
            ids, texts = await counting.text_ids(model, prompt, adds_special=parsed.adds_special), (prompt,)
        answer = await off_loop(len(ids), partial(_tokenize_answer, parsed, model, ids))
        return counting.prepared(parsed.model, target, "tokenize", texts, answer, parsed.ignored)


def _tokenize_answer(body: TokenizeBody, model: ServedModel, ids: Sequence[int]) -> dict[str, Any]:
    pieces = [model.tokenizer.token_piece(token) for token in ids] if body.tells_pieces else None
    return {
        "count": len(ids),
        "max_model_len": model.base.max_model_len,
        "tokens": list(ids),
        "token_strs": pieces,
    }


class CountPreparer:
    """Preparation of /v1/messages/count_tokens, whose bodies are those of the route that would answer them.

    Args:
        counting: shared.
    """

    prompt_param = "messages"

    def __init__(self, counting: TokenCounting) -> None:
        self._counting = counting

    async def prepare(
        self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = ""
    ) -> PreparedAnswer:
        """Check, resolve and count; raises ``StratosError`` with the client's answer."""
        counting = self._counting
        lookup = await counting.catalogue.look_up(tenant, body.get("model"), session_of(body))
        parsed, model = parse_message(body, lookup.served.base.vocab_size), lookup.served
        target = lookup.target
        [conversation] = parsed.prompts
        assert isinstance(conversation, Conversation), "this dialect's only prompt"
        answer = {"input_tokens": len(await counting.conversation_ids(model, conversation))}
        return counting.prepared(
            parsed.options.model, target, "count_tokens", conversation.texts, answer, parsed.ignored
        )


class DetokenizePreparer:
    """Preparation of /detokenize.

    Args:
        counting: shared.
    """

    prompt_param = "tokens"

    def __init__(self, counting: TokenCounting) -> None:
        self._counting = counting

    async def prepare(
        self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = ""
    ) -> PreparedAnswer:
        """Check, resolve and decode; raises ``StratosError`` with the client's answer."""
        counting, given = self._counting, body.get("tokens")
        num_ids = len(given) if isinstance(given, list) else 0
        if num_ids > MAX_COUNTED_TOKENS:
            raise ContextLengthExceeded(f"tokens may hold at most {MAX_COUNTED_TOKENS} ids", param="tokens")
        lookup = await counting.look_up(tenant, body.get("model"))
        base = lookup.served.base
        parsed = await off_loop(num_ids, partial(parse_detokenize, body, base.name, base.vocab_size))
        target = lookup.target
        decode: Callable[[], str] = partial(target.served.tokenizer.decode, parsed.token_ids, skip_special=False)
        text = await off_loop(num_ids, decode)
        return counting.prepared(parsed.model, target, "detokenize", (text,), {"prompt": text})
