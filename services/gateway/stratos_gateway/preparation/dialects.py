"""Dialects of the generation API: a parser and a renderer each, in a table that the routes are made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stratos.common.ids import new_id
from stratos.core.tenant import Tenant
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.anthropic.errors import MESSAGE_ERRORS
from stratos_gateway.anthropic.rendering import MessageRenderer
from stratos_gateway.anthropic.requests import message_param, parse_message
from stratos_gateway.completion.forms import BestRenderer, EchoRenderer
from stratos_gateway.completion.requests import DEFAULT_MAX_TOKENS, parse_completion
from stratos_gateway.http.errors import OPENAI_ERRORS, ErrorForm
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.openai.answers import ChatRenderer, CompletionRenderer
from stratos_gateway.openai.chat_events import EventRenderer
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.openai.rendering import Answer, Renderer
from stratos_gateway.openai.requests import Conversation, GenerationBody, parse_chat
from stratos_gateway.policies.prompts import PromptRenderer
from stratos_gateway.responses.rendering import ResponseRenderer
from stratos_gateway.responses.requests import ResponseBody, parse_response, public_name
from stratos_gateway.responses.state import Responses

Body = dict[str, Any]


def new_response_id() -> str:
    """Id of a response, as clients know its form."""
    return new_id("resp").replace("-", "_")


async def no_template(templates: PromptRenderer, body: Body, tenant: str) -> Body:
    """The body of a dialect without prompt templates, as it is."""
    return body


async def keep_nothing(kept: Responses, body: GenerationBody, tenant: Tenant, renderer: Renderer, usage: Usage) -> None:
    """Do nothing: the client has all of the answer."""


def _for_vocabulary(parse: Callable[[Body, int], GenerationBody], body: Body, model: ServedModel) -> GenerationBody:
    """Parse a body whose token ids are the model's."""
    return parse(body, model.base.vocab_size)


def render_chat(answer: Answer, tokenizer: Tokenizer, body: GenerationBody, texts: Sequence[str]) -> Renderer:
    """Renderer of one conversation, with its last message where that is echoed and the answer has its role."""
    [conversation] = body.prompts
    assert isinstance(conversation, Conversation), "this dialect's only prompt"
    last = conversation.messages[-1]
    echo = last.content if texts and body.echo and last.role == "assistant" else ""
    return (ChatRenderer if answer.shape is None else EventRenderer)(answer, tokenizer, echo)


def render_completion(answer: Answer, tokenizer: Tokenizer, body: GenerationBody, texts: Sequence[str]) -> Renderer:
    """Renderer of texts that go on, with their prompts where these are echoed."""
    echoes = texts if body.echo else ()
    if body.options.best is not None:
        return BestRenderer(answer, tokenizer, echoes, body.options.best)
    return (EchoRenderer if body.echoes_alone else CompletionRenderer)(answer, tokenizer, echoes)


def render_response(answer: Answer, tokenizer: Tokenizer, body: GenerationBody, texts: Sequence[str]) -> Renderer:
    """Renderer of a response, which repeats fields of its request."""
    assert isinstance(body, ResponseBody), "this dialect's own"
    return ResponseRenderer(answer, tokenizer, body)


def render_message(answer: Answer, tokenizer: Tokenizer, body: GenerationBody, texts: Sequence[str]) -> Renderer:
    """Renderer of a message, which tells no log probabilities."""
    return MessageRenderer(answer, tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One generation route."""

    path: str
    route: str
    """Its name in the ledger."""
    operation: str
    """Its name in traces."""
    prompt_param: str
    make_id: Callable[[], str]
    """Id of an answer."""
    continues_prompt: bool
    """The output's text goes on with the prompt's."""
    parse: Callable[[Body, ServedModel], GenerationBody]
    """Body for a base model to a checked record."""
    render: Callable[[Answer, Tokenizer, GenerationBody, Sequence[str]], Renderer]
    """Renderer of an answer to a checked body, whose prompts have these texts."""
    name_param: Callable[[str], str] = str
    """The route's name for a field of a chat."""
    complete: Callable[[Responses, GenerationBody, Tenant], Awaitable[GenerationBody]] | None = None
    """Adds to a checked body what is kept of earlier ones; ``None`` in a dialect without state."""
    keep: Callable[[Responses, GenerationBody, Tenant, Renderer, Usage], Awaitable[None]] = keep_nothing
    """Keeps an answer whose output has ended, before its client is told of the end."""
    fill: Callable[[PromptRenderer, Body, str], Awaitable[Body]] = no_template
    """Puts a tenant's prompt template into a body that names one."""
    default_max_tokens: int | None = None
    """Most tokens of an answer where a request says nothing; ``None`` leaves it to the model."""
    errors: ErrorForm = OPENAI_ERRORS
    """Form of errors on its path, and below it."""


CHAT = Dialect(
    path="/v1/chat/completions",
    route="chat",
    operation="chat",
    prompt_param="messages",
    make_id=partial(new_id, "chatcmpl"),
    continues_prompt=False,
    parse=partial(_for_vocabulary, parse_chat),
    render=render_chat,
    fill=PromptRenderer.chat_body,
)
COMPLETION = Dialect(
    path="/v1/completions",
    route="completion",
    operation="text_completion",
    prompt_param="prompt",
    make_id=partial(new_id, "cmpl"),
    continues_prompt=True,
    default_max_tokens=DEFAULT_MAX_TOKENS,
    parse=partial(_for_vocabulary, parse_completion),
    render=render_completion,
    fill=PromptRenderer.completion_body,
)
RESPONSE = Dialect(
    path="/v1/responses",
    route="response",
    operation="chat",
    prompt_param="input",
    make_id=new_response_id,
    continues_prompt=False,
    parse=partial(_for_vocabulary, parse_response),
    render=render_response,
    name_param=public_name,
    complete=Responses.complete,
    keep=Responses.keep,
    fill=PromptRenderer.response_body,
)
MESSAGE = Dialect(
    path="/v1/messages",
    route="message",
    operation="chat",
    prompt_param="messages",
    make_id=partial(new_id, "msg"),
    continues_prompt=False,
    parse=partial(_for_vocabulary, parse_message),
    render=render_message,
    name_param=message_param,
    fill=PromptRenderer.chat_body,
    errors=MESSAGE_ERRORS,
)
DIALECTS = (CHAT, COMPLETION, RESPONSE, MESSAGE)
ERROR_FORMS = {dialect.path: dialect.errors for dialect in DIALECTS if dialect.errors is not OPENAI_ERRORS}
"""Dialects that tell errors otherwise than OpenAI, by path."""
