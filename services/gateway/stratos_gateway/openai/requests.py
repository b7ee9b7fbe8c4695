"""Bodies of chats, and options of all generation routes, -> checked records; a failure is a 400 with ``param``.

Fields that ask for nothing special are accepted and ignored, features that are not there are refused by name,
anything unknown is refused too: a misspelt parameter must not be lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from stratos.common.changed import record
from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarKind
from stratos.core.requests.limits import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_TOKEN_IDS,
    check_bad_words,
    check_logit_bias,
    check_model_name,
    check_stop,
    check_stop_token_ids,
    check_token_id_list,
)
from stratos.core.requests.pins import Breakpoint
from stratos.core.requests.tools import NO_TOOLS, ToolUse, scalar_texts
from stratos.core.tenancy.plan import CHEAP_TIERS
from stratos.text.chat_template import PLAIN_USE, ChatMessage, TemplateUse
from stratos_gateway.http.body import UNKNOWN
from stratos_gateway.models.score_head import Pair
from stratos_gateway.openai.fields import (
    HARMLESS_FIELDS,
    OWN_FIELDS,
    SAMPLING_ROWS,
    Fields,
    PlainFields,
    WantedGrammar,
    ignored_fields,
    take_grammar,
)
from stratos_gateway.openai.messages import check_messages, ignored_in_messages, with_marks
from stratos_gateway.openai.stream_and_prompt import Truncation, take_stream_options, take_truncation
from stratos_gateway.openai.template_use import check_effort, take_template_use
from stratos_gateway.openai.tools import take_tools


@dataclass(frozen=True, slots=True)
class BestOf:
    """The best of several choices are shown, those with the highest mean log probability of a token."""

    num_shown: int
    """Per prompt."""
    tells_logprobs: bool
    """The client wants log probabilities, too; the choice among choices needs them anyway."""


@record(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Options of every generation route."""

    model: str
    stream: bool
    stop: tuple[str, ...]
    include_stop: bool
    seed: int | None
    max_tokens: int | None
    num_logprobs: int | None
    bad_words: tuple[str, ...]
    bad_token_ids: tuple[int, ...]
    grammar: WantedGrammar | None
    metadata: Mapping[str, str]
    """Texts that the client attaches."""
    session: str
    """Name of the client's session, used for placement alone; empty when it gives none."""
    sampling: dict[str, Any]
    """Keyword arguments of ``SamplingParams`` besides those that have a field here."""
    include_usage: bool = False
    continuous_usage: bool = False
    """Every event of a stream has the usage so far."""
    n: int = 1
    best: BestOf | None = None
    """The best of ``n`` are shown; ``None`` shows all."""
    truncation: Truncation | None = None
    shows_special: bool = False
    """Special tokens of the output are part of its text."""
    num_prompt_logprobs: int | None = None
    """Value of the field of this name."""
    num_echo_logprobs: int | None = None
    """Value of ``logprobs`` together with ``echo``."""
    return_token_ids: bool = False
    names_token_ids: bool = False
    """Log probabilities name tokens by their ids."""
    continuation: str = ""
    """Token of an earlier answer to go on from; empty begins one."""
    hides_reasoning: bool = False
    """The answer goes without its reasoning, which is counted all the same."""
    tells_stop: bool = False
    """The answer says which stop string has ended it."""
    is_warm_up: bool = False
    """The prompt alone is computed by this platform, for the request that goes on from it: no output is shown."""


@dataclass(frozen=True, slots=True)
class ReasoningWish:
    """How much a model is to reason."""

    effort: str = ""
    """Effort, "none" included; empty leaves it to the template."""
    budget: int | None = None
    """Most tokens; ``None`` does not bound them."""
    effort_field: str = ""
    """Field of the effort that is named as ignored where the model cannot do it; empty refuses it there."""
    budget_field: str = ""
    """The same of the budget."""


NO_WISH = ReasoningWish()


@dataclass(frozen=True, slots=True)
class Conversation:
    """The prompt of a chat."""

    messages: tuple[ChatMessage, ...]
    tools: ToolUse = NO_TOOLS
    use: TemplateUse = PLAIN_USE
    thinks: bool | None = None
    """Whether the model is to reason; ``None`` leaves it to its template."""
    wish: ReasoningWish = NO_WISH

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that the client has written."""
        told = (text for message in self.messages for text in message.texts)
        return (*told, *self.tools.texts, *scalar_texts(dict(self.use.values)))

    @property
    def is_plain(self) -> bool:
        """Roles, names and contents are all there is to it."""
        return (
            not self.tools.tools
            and self.use == PLAIN_USE
            and self.thinks is None
            and self.wish == NO_WISH
            and all(m == ChatMessage(m.role, m.content, name=m.name) for m in self.messages)
        )


Prompt = Conversation | Pair | str | tuple[int, ...]
"""Messages, a query with a document, text or token ids."""


@record(frozen=True, slots=True, kw_only=True)
class GenerationBody:
    """A checked body of a generation route."""

    options: GenerationOptions
    prompts: tuple[Prompt, ...]
    echo: bool = False
    """Answers begin with the text of their prompt; of a chat, with that of the answer's beginning in it."""
    adds_special: bool = True
    """Prompts that are texts get the special tokens of the tokenizer."""
    echoes_alone: bool = False
    """Answers are the text of their prompt: the one token that was generated is not shown."""
    ignored: tuple[str, ...] = ()
    """Fields that mean nothing here, which answers name in a header."""
    keeps_s: int = 0
    """Seconds that the KV of the whole prompt is to be kept; 0 for not at all."""
    keep_fields: tuple[str, ...] = ()
    """Fields that ask for the prompt, or parts of it, to be kept."""
    breakpoints: tuple[tuple[Breakpoint, ...], ...] = ()
    """By prompt, once that is encoded."""
    reasoning_budget: int | None = None
    """Most tokens of reasoning, which a grammar holds."""
    is_background: bool = False
    """It is answered without its client, which asks for the answer later."""

    @property
    def continues_prompt(self) -> bool:
        """The output goes on with the last message of a conversation."""
        return any(isinstance(prompt, Conversation) and prompt.use.continues_last for prompt in self.prompts)


def parse_chat(body: dict[str, Any], vocab_size: int) -> GenerationBody:
    """Check a body of /v1/chat/completions.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    fields = Fields(body)
    messages, tools = check_messages(body.get("messages")), take_tools(fields)
    keeping = fields.take_keeping()
    messages, keep_fields = with_marks(fields, messages, tools, keeping)
    ignored = (*ignored_fields(body), *ignored_in_messages(fields.take("messages")))
    wants, top = fields.flag("logprobs"), fields.number("top_logprobs", "num_logprobs")
    if top is not None and not wants:
        raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    max_tokens, newer = fields.number("max_tokens"), fields.number("max_completion_tokens", "max_tokens")
    use = take_template_use(fields)
    wish = ReasoningWish(check_effort(fields.take("reasoning_effort"), "reasoning_effort"), take_budget(fields))
    hides_reasoning, echo = not fields.flag("include_reasoning", default=True), fields.flag("echo")
    _refuse_chat_features(fields)
    options = shared_options(
        fields,
        vocab_size,
        max_tokens=newer if newer is not None else max_tokens,
        num_logprobs=(top or 0) if wants else None,
    )
    options = replace(options, hides_reasoning=hides_reasoning)
    check_tools_and_grammar(tools, options)
    conversation = Conversation(messages, tools, use, wish=wish)
    return GenerationBody(
        options=options, prompts=(conversation,), echo=echo, ignored=ignored, keeps_s=keeping.ttl_s,
        keep_fields=keep_fields,
    )  # fmt: skip


def take_budget(fields: Fields) -> int | None:
    """Most tokens of reasoning, as vLLM names the field; raises ``BadRequest``."""
    budget = fields.number("thinking_token_budget", "min_tokens")
    return None if budget is None else int(budget)


def check_tools_and_grammar(tools: ToolUse, options: GenerationOptions) -> None:
    """Refuse a grammar that cannot be combined with calls."""
    if tools.may_call and options.grammar is not None and options.grammar.spec.kind is not GrammarKind.JSON_SCHEMA:
        text = "tools can be combined with a JSON schema alone; use tool_choice: none"
        raise BadRequest(text, param=options.grammar.param, code="unsupported_parameter")


def shared_options(
    fields: Fields, vocab_size: int, *, max_tokens: float | None, num_logprobs: float | None
) -> GenerationOptions:
    """Read what chats and completions share, and the end of the body; raises like ``take_options``.

    What a client asks for beside its prompt is the same in many requests, and is read once.
    """
    left = None if fields.has_any(OWN_FIELDS) else fields.plain_left()
    if left is None or UNKNOWN.get() is not None:  # else fields that are not known are listed
        return read_options(fields, vocab_size, max_tokens, num_logprobs)
    return _options_of(left, vocab_size, max_tokens, num_logprobs)


@lru_cache(maxsize=1024)
def _options_of(
    left: PlainFields, vocab_size: int, max_tokens: float | None, num_logprobs: float | None
) -> GenerationOptions:
    fields = Fields({name: value for name, _, value in left})
    return read_options(fields, vocab_size, max_tokens, num_logprobs)


def read_options(
    fields: Fields, vocab_size: int, max_tokens: float | None, num_logprobs: float | None
) -> GenerationOptions:
    """Options of one body; raises like ``take_options``."""
    stream = fields.flag("stream")
    shared = _take_shared(fields, stream) if fields.has_any(_RARELY_SHARED) else _NOTHING_SHARED
    return take_options(fields, vocab_size, stream=stream, max_tokens=max_tokens, num_logprobs=num_logprobs, **shared)


_RARELY_SHARED = frozenset({
    "prompt_logprobs", "n", "return_token_ids", "return_tokens_as_token_ids", "stream_options", "response_format",
    "structured_outputs", "truncate_prompt_tokens", "truncation_side", "skip_special_tokens",
    "spaces_between_special_tokens", "priority",
})  # fmt: skip
"""Fields of ``_take_shared``."""


def _take_shared(fields: Fields, stream: bool) -> dict[str, Any]:
    """Arguments of ``take_options`` that most bodies leave at their defaults."""
    num_prompt_logprobs = fields.number("prompt_logprobs", "num_prompt_logprobs")
    if stream and num_prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs cannot be streamed", param="prompt_logprobs")
    n, return_token_ids = fields.number("n"), fields.flag("return_token_ids")
    names_token_ids = fields.flag("return_tokens_as_token_ids")
    shown, grammar = take_stream_options(fields.take("stream_options"), stream), take_grammar(fields)
    truncation, skips_special = take_truncation(fields), fields.flag("skip_special_tokens", default=True)
    fields.refuse("spaces_between_special_tokens", True)
    fields.refuse("priority", 0)
    return {
        "grammar": grammar,
        "include_usage": shown.include_usage,
        "continuous_usage": shown.continuous_usage,
        "truncation": truncation,
        "shows_special": not skips_special,
        "n": 1 if n is None else int(n),
        "num_prompt_logprobs": None if num_prompt_logprobs is None else int(num_prompt_logprobs),
        "return_token_ids": return_token_ids,
        "names_token_ids": names_token_ids,
    }


_NOTHING_SHARED = _take_shared(Fields({}), stream=False)


def take_options(
    fields: Fields,
    vocab_size: int,
    *,
    stream: bool,
    max_tokens: float | None,
    num_logprobs: float | None,
    grammar: WantedGrammar | None,
    **more: Any,
) -> GenerationOptions:
    """Read what every generation route has, and the end of the body: a field that was not read is refused.

    Args:
        fields: of the body, but for those that were read.
        vocab_size: of the model.
        stream: as the route has it.
        max_tokens: the same.
        num_logprobs: the same.
        grammar: the same.
        more: options that the route has.

    Raises:
        BadRequest: says which parameter is wrong, and how.
    """
    rare = _take_rare(fields, vocab_size) if fields.has_any(_RARE) else _NOTHING_RARE
    sampling = {**rare.sampling, **fields.numbers(SAMPLING_ROWS), "ignore_eos": fields.flag("ignore_eos")}
    if max_tokens is not None and sampling.get("min_tokens", 0) > max_tokens:
        raise BadRequest("min_tokens must not be above max_tokens", param="min_tokens")
    seed = fields.number("seed")
    options = GenerationOptions(
        model=check_model_name(fields.take("model")),
        stream=stream,
        seed=None if seed is None else int(seed),
        max_tokens=None if max_tokens is None else int(max_tokens),
        num_logprobs=None if num_logprobs is None else int(num_logprobs),
        grammar=grammar,
        sampling=sampling,
        **rare.options,
        **more,
    )
    fields.end()
    return options


class _Rare(NamedTuple):
    """Values of fields that few bodies have."""

    sampling: dict[str, Any]
    options: dict[str, Any]


_RARE = frozenset({
    "logit_bias", "stop_token_ids", "allowed_token_ids", "speculation", "stop", "include_stop_str_in_output",
    "bad_words", "bad_token_ids", "metadata", "continuation_token", "service_tier", "skip_special_tokens",
    *HARMLESS_FIELDS,
})  # fmt: skip
"""Fields of ``_take_rare``."""


def _take_rare(fields: Fields, vocab_size: int) -> _Rare:
    sampling = {
        "logit_bias": check_logit_bias(fields.take("logit_bias"), vocab_size),
        "stop_token_ids": check_stop_token_ids(fields.take("stop_token_ids"), vocab_size),
        "allowed_token_ids": check_token_id_list(
            fields.take("allowed_token_ids"), vocab_size, "allowed_token_ids", MAX_ALLOWED_TOKEN_IDS
        ),
        "drafts_off": fields.choice("speculation", "auto", "off") == "off",
    }
    bad_ids = check_token_id_list(fields.take("bad_token_ids"), vocab_size, "bad_token_ids", MAX_BAD_TOKEN_IDS)
    options = {
        "stop": check_stop(fields.take("stop")),
        "include_stop": fields.flag("include_stop_str_in_output"),
        "bad_words": check_bad_words(fields.take("bad_words")),
        "bad_token_ids": bad_ids,
        "metadata": fields.take_metadata(),
        "session": fields.take_session(),
        "continuation": fields.take_text("continuation_token"),
    }
    fields.ignore_harmless()
    fields.refuse("service_tier", "auto", "default", *CHEAP_TIERS)
    fields.refuse("skip_special_tokens", True)
    return _Rare(sampling, options)


_NOTHING_RARE = _take_rare(Fields({}), 0)


def _refuse_chat_features(fields: Fields) -> None:
    fields.refuse("modalities", ["text"])
    fields.refuse("verbosity", "medium")
    fields.ignore("prediction")
    for name in ("audio", "web_search_options", "moderation", "chat_template"):
        fields.refuse(name)
