"""Bodies of /v1/responses -> checked records; every failure is a 400 with ``param``, in the names of this API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from stratos.common.changed import record
from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import ANY_OBJECT
from stratos.core.requests.limits import check_metadata
from stratos.core.requests.pins import CACHE_CONTROL, CACHE_OPTIONS, RETENTION
from stratos.core.requests.tools import ToolMode
from stratos.core.tenancy.plan import CHEAP_TIERS
from stratos.text.chat_template import ChatMessage, TemplateUse
from stratos_gateway.openai.fields import Fields, WantedGrammar, asks, named_schema, object_fields
from stratos_gateway.openai.messages import with_marks
from stratos_gateway.openai.requests import (
    Conversation,
    GenerationBody,
    GenerationOptions,
    ReasoningWish,
    check_tools_and_grammar,
    take_budget,
    take_options,
)
from stratos_gateway.openai.template_use import check_effort, take_template_values
from stratos_gateway.openai.tools import ALLOWED_TOOLS
from stratos_gateway.responses.items import CheckedInput, check_input, with_instructions
from stratos_gateway.responses.tools import ResponseTools, take_response_tools

_NOT_THERE = ("conversation", "moderation", "access_programs", "image")
"""Features that are refused by name; those with a value that asks for nothing stand below."""
_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_INCLUDABLE = (_LOGPROBS, _ENCRYPTED)
_ECHOED_TEXTS = ("user", "safety_identifier", "prompt_cache_key")
_IGNORED = ("client_metadata",)
"""Fields that mean nothing here, which answers name where they ask for something."""
_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}


@record(frozen=True, slots=True, kw_only=True)
class ResponseBody(GenerationBody):
    """A checked body of /v1/responses."""

    echoed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the response repeats, as they were understood."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and own name of functions, by the name that the model is told."""
    includes_logprobs: bool = False
    store: bool | None = None
    """The response is kept; ``None`` leaves it to the gateway."""
    previous: str = ""
    """Id of the response that this one goes on from."""
    input: Any = ""
    """The parameter as it was given, until it is known whether it is kept."""
    messages: tuple[ChatMessage, ...] = ()
    """Messages of the input alone."""
    instructions: str = ""
    items: Sequence[dict[str, Any]] | None = None
    """Items of the conversation, where its response is kept."""

    @property
    def is_warm_up(self) -> bool:
        """No output is shown."""
        return self.options.is_warm_up


def public_name(param: str) -> str:
    """The name that this API has for a field of a chat."""
    return _NAMES.get(param, param)


def parse_response(body: dict[str, Any], vocab_size: int) -> ResponseBody:
    """Check a body of /v1/responses.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    fields = Fields(body)
    given, instructions = fields.take("input"), fields.take_text("instructions")
    is_warm_up = not fields.flag("generate", default=True)
    checked = CheckedInput() if is_warm_up and instructions and given == [] else check_input(given)
    tools, format_field = take_response_tools(fields), fields.take("text")
    grammar, text_echo = _text_config(format_field)
    reasoning, budget = _reasoning(fields.take("reasoning")), take_budget(fields)
    includes_logprobs = _LOGPROBS in _include(fields.take("include"))
    top = fields.number("top_logprobs", "num_logprobs")
    if top is not None and not includes_logprobs:
        raise BadRequest(f"top_logprobs needs include: [{_LOGPROBS!r}]", param="top_logprobs")
    metadata, store = fields.take("metadata"), fields.flag("store") if body.get("store") is not None else None
    metadata = check_metadata(metadata)
    is_background = fields.flag("background")
    if is_background and store is False:
        raise BadRequest("a background response is kept, so store cannot be false", param="store")
    if is_background and is_warm_up:
        raise BadRequest("generate cannot be false in the background", param="generate")
    previous, keeping = fields.take_text("previous_response_id"), fields.take_keeping()
    if not checked.messages:
        fields.refuse(CACHE_CONTROL)  # the end of the last message, of which there is none
    messages, keep_fields = with_marks(fields, checked.messages, tools.use, keeping)
    use = TemplateUse(values=take_template_values(fields))
    _refuse_features(fields)
    options = take_options(
        fields,
        vocab_size,
        stream=fields.flag("stream"),
        max_tokens=fields.number("max_output_tokens", "max_tokens"),
        num_logprobs=(top or 0) if includes_logprobs else None,
        grammar=grammar,
    )
    options = replace(options, metadata=metadata)
    check_tools_and_grammar(tools.use, options)
    echoed = {
        **{name: body[name] for name in _ECHOED_TEXTS if isinstance(body.get(name), str)},
        **{name: body[name] for name in (RETENTION, CACHE_OPTIONS) if asks(body.get(name))},
        **_echoed_tools(body, tools),
        "background": is_background,
        "service_tier": body["service_tier"] if body.get("service_tier") in CHEAP_TIERS else "default",
        "instructions": instructions or None,
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": metadata or {},
        "reasoning": reasoning,
        "previous_response_id": previous or None,
        "store": False,
        "text": text_echo,
        "top_logprobs": top or 0,
        **_echoed_sampling(options),
    }
    wish = ReasoningWish(reasoning["effort"] or "", budget)
    messages_of = with_instructions(instructions, messages)
    conversation = Conversation(messages_of, tools.use, use, wish=wish)
    return ResponseBody(
        is_background=is_background,
        keeps_s=keeping.ttl_s,
        keep_fields=keep_fields,
        options=_of_warm_up(options) if is_warm_up else options,
        prompts=(conversation,),
        echoed=echoed,
        ignored=(*tools.ignored, *checked.ignored, *(name for name in _IGNORED if body.get(name))),
        namespaces=tools.owners,
        includes_logprobs=includes_logprobs,
        store=store,
        previous=previous,
        input=given,
        messages=messages,
        instructions=instructions,
    )


def _of_warm_up(options: GenerationOptions) -> GenerationOptions:
    """Options of the one token that comes with a prompt."""
    sampling = {name: value for name, value in options.sampling.items() if name != "min_tokens"}
    return replace(options, max_tokens=1, sampling=sampling, is_warm_up=True)


def _refuse_features(fields: Fields) -> None:
    for name in _NOT_THERE:
        fields.refuse(name)
    fields.ignore("client_metadata")
    fields.refuse("context_management", [])
    fields.refuse("truncation", "disabled")
    fields.number("max_tool_calls", "max_tokens")  # of built-in tools, of which there are none
    options = fields.take("stream_options")
    if options is not None:
        within = object_fields(options, "stream_options")
        within.ignore("include_obfuscation")
        within.end()


def _text_config(value: Any) -> tuple[WantedGrammar | None, dict[str, Any]]:
    """The grammar of the ``text`` field, and the field as it is repeated."""
    grammar, shown = None, {"type": "text"}
    if value is not None:
        fields = object_fields(value, "text")
        given = fields.take("format")
        fields.refuse("verbosity", "medium")
        fields.end()
        if given is not None:
            grammar, shown = _format(given)
    return grammar, {"format": shown, "verbosity": "medium"}


def _format(value: Any) -> tuple[WantedGrammar | None, dict[str, Any]]:
    path = "text.format"
    fields = object_fields(value, path)
    match fields.take("type"):
        case "text":
            fields.end()
            return None, {"type": "text"}
        case "json_object":
            fields.end()
            return WantedGrammar(ANY_OBJECT, path), {"type": "json_object"}
        case "json_schema":
            grammar = named_schema(fields, path)
            shown = {name: value[name] for name in ("type", "name", "description") if value.get(name) is not None}
            return grammar, {**shown, "schema": value.get("schema") or {}, "strict": bool(value.get("strict"))}
    raise BadRequest(f"{path}.type must be text, json_object or json_schema", param=f"{path}.type")


def _reasoning(value: Any) -> dict[str, Any]:
    """The field as it is repeated; reasoning comes as it is, and nothing makes summaries of it."""
    effort = ""
    if value is not None:
        fields = object_fields(value, "reasoning")
        effort = check_effort(fields.take("effort"), "reasoning.effort")
        fields.refuse("summary", "auto")
        fields.refuse("generate_summary", "auto")
        fields.refuse("context", "auto")
        fields.refuse("mode", "standard")
        fields.end()
    return {"effort": effort or None, "summary": None}


def _include(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest("include must be a list", param="include")
    for index, name in enumerate(value):
        if name not in _INCLUDABLE:
            text = f"include[{index}]: only {', '.join(_INCLUDABLE)} are supported"
            raise BadRequest(text, param=f"include[{index}]", code="unsupported_parameter")
    return value


def _echoed_sampling(options: GenerationOptions) -> dict[str, Any]:
    sampling = options.sampling
    return {
        "temperature": sampling.get("temperature", 1.0),
        "top_p": sampling.get("top_p", 1.0),
        "max_output_tokens": options.max_tokens,
    }


def _echoed_tools(body: Mapping[str, Any], tools: ResponseTools) -> dict[str, Any]:
    use, given = tools.use, body.get("tool_choice")
    is_narrowed = isinstance(given, dict) and given.get("type") == ALLOWED_TOOLS
    choice: Any = {"type": "function", "name": use.named} if use.mode is ToolMode.NAMED else str(use.mode)
    return {
        "tools": list(tools.shown),
        "tool_choice": choice if use.tools and not is_narrowed else given or str(ToolMode.AUTO),
        "parallel_tool_calls": use.is_parallel if use.tools else body.get("parallel_tool_calls") is not False,
    }
