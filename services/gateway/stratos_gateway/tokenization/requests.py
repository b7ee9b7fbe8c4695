"""Bodies of /tokenize and /detokenize, as vLLM has them -> checked records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import check_model_name, check_token_ids
from stratos_gateway.openai.fields import Fields
from stratos_gateway.openai.messages import check_messages, ignored_in_messages
from stratos_gateway.openai.requests import Conversation
from stratos_gateway.openai.template_use import take_template_use
from stratos_gateway.openai.tools import take_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeBody:
    """A checked body of /tokenize."""

    model: str
    prompt: str | Conversation
    adds_special: bool = True
    """Special tokens of the tokenizer are added to a text; of a conversation its template's use says that."""
    tells_pieces: bool
    """The answer has the tokens' spellings, too."""
    ignored: tuple[str, ...] = ()
    """Fields of messages that mean nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeBody:
    """A checked body of /detokenize."""

    model: str
    token_ids: tuple[int, ...]


def parse_tokenize(body: dict[str, Any], default_model: str) -> TokenizeBody:
    """Check a body of /tokenize: a text, or a conversation.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    fields = Fields(body)
    model, prompt, messages = _model(fields, default_model), fields.take("prompt"), fields.take("messages")
    tells_pieces = fields.flag("return_token_strs")
    if (prompt is None) == (messages is None):
        raise BadRequest("give either prompt or messages", param="prompt")
    if messages is None:
        if not isinstance(prompt, str):
            raise BadRequest("prompt must be a string", param="prompt")
        adds_special = fields.flag("add_special_tokens", default=True)
        fields.end()
        return TokenizeBody(model=model, prompt=prompt, adds_special=adds_special, tells_pieces=tells_pieces)
    conversation = Conversation(check_messages(messages), take_tools(fields), take_template_use(fields))
    fields.refuse("chat_template")
    fields.refuse("mm_processor_kwargs", {})
    fields.end()
    return TokenizeBody(
        model=model,
        prompt=conversation,
        tells_pieces=tells_pieces,
        ignored=ignored_in_messages(messages),
    )


def parse_detokenize(body: dict[str, Any], default_model: str, vocab_size: int) -> DetokenizeBody:
    """Check a body of /detokenize; raises like ``parse_tokenize``."""
    fields = Fields(body)
    model, ids = _model(fields, default_model), fields.take("tokens")
    if not isinstance(ids, list):
        raise BadRequest("tokens must be a list of token ids", param="tokens")
    fields.end()
    return DetokenizeBody(model=model, token_ids=check_token_ids(ids, vocab_size, "tokens") if ids else ())


def _model(fields: Fields, default: str) -> str:
    """Name of the model; without one it is the base model, as in vLLM."""
    name = fields.take("model")
    return default if name is None else check_model_name(name)
