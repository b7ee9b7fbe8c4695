"""From a body to what runs, without a router, a worker or a process that tries grammars."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from stratos.common.errors import BadRequest, ContextLengthExceeded, ModelNotFound, StratosError
from stratos.core.adapter import Adapter, AdapterRef
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.limits import MAX_PROMPT_LOGPROBS
from stratos.core.requests.watermark import Watermark
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.text.chat_template import ChatMessage
from stratos_gateway.answering.request import PreparedGeneration
from stratos_gateway.completion.requests import DEFAULT_MAX_TOKENS as COMPLETIONS_DEFAULT
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.grammar_check import GrammarCheck
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.watermark_policy import WatermarkPolicy
from stratos_gateway.openai.fields import SAMPLING_ROWS
from stratos_gateway.preparation.dialects import CHAT, COMPLETION
from stratos_gateway.preparation.generation import GenerationPreparer, PreparationTools
from tests.support.fakes.gateway_fakes import FakeRouter, FakeSessions, make_platform
from tests.support.reference.shipped_model import VOCAB_SIZE, served_model

TENANT = Tenant(name="acme", cache_salt=b"salt")
TRACE = TraceContext(traceparent=f"00-{'a' * 32}-{'b' * 16}-01", http_request_id="req-1")
MAX_MODEL_LEN = 64
MAX_INPUT_TOKENS = 48
DEFAULT_MAX_TOKENS = 20
REGEX = {"structured_outputs": {"regex": "[ab]+"}}


@dataclass
class FakeGrammars:
    """Gives its verdict once ``may_answer`` is set, which it is unless a test clears it."""

    problem: str = ""
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[GrammarSpec, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def check(self, spec: GrammarSpec, param: str, tenant: str) -> None:
        self.asked.append((spec, param, tenant))
        self.is_asked.set()
        await self.may_answer.wait()
        if self.problem:
            raise BadRequest(self.problem, param=param)


class FakeAdapters:
    async def find(self, tenant: str, name: str) -> Adapter | None:
        return next((adapter for adapter in self.list(tenant) if adapter.name == name), None)

    def list(self, tenant: str) -> Sequence[Adapter]:
        adapter = Adapter(
            tenant=tenant, name="tuned", base_model_digest=served_model().base.digest, uri="adapters/tuned",
            digest="d" * 64, rank=2, alpha=4.0, target_modules=("q_proj",), num_bytes=1, created_unix_s=0,
        )  # fmt: skip
        return [adapter] if tenant == TENANT.name else []


def make_model(
    grammars: FakeGrammars | None = None, max_input_tokens: int = MAX_INPUT_TOKENS, **base: Any
) -> ServedModel:
    """The shipped model with a small context."""
    shipped = served_model()
    return replace(
        shipped,
        base=replace(shipped.base, **{"max_model_len": MAX_MODEL_LEN, **base}),
        max_input_tokens=max_input_tokens,
        grammars=cast("GrammarCheck", grammars or FakeGrammars()),
    )


def make_preparation(model: ServedModel | None = None, watermarks: WatermarkPolicy | None = None) -> PreparationTools:
    model = model or make_model()
    models = ModelSet([replace(model, default_max_tokens=DEFAULT_MAX_TOKENS)])
    return PreparationTools(
        catalogue=ModelCatalogue(models, FakeAdapters()),
        watermarks=watermarks or WatermarkPolicy(),
        wall_clock=lambda: 1234.5,
    )


async def chat(preparation: PreparationTools | None = None, **fields: Any) -> PreparedGeneration:
    body = {"model": "base", "messages": [{"role": "user", "content": "x"}], **fields}
    return await GenerationPreparer(preparation or make_preparation(), CHAT).prepare(body, TENANT, TRACE)


async def complete(preparation: PreparationTools | None = None, **fields: Any) -> PreparedGeneration:
    body = {"model": "base", "prompt": [5, 6, 7], **fields}
    return await GenerationPreparer(preparation or make_preparation(), COMPLETION).prepare(body, TENANT, TRACE)


ROUTES = pytest.mark.parametrize("prepare", [chat, complete])


async def refusal(prepare: Any, *arguments: Any, **fields: Any) -> StratosError:
    with pytest.raises(StratosError) as caught:
        await prepare(*arguments, **fields)
    return caught.value


# -- who asks, and for what --------------------------------------------------------------------------


@ROUTES
async def test_a_request_carries_its_tenants_terms_and_its_trace(prepare: Any) -> None:
    [spec] = (await prepare()).specs
    assert (spec.terms, spec.trace) == (TENANT.terms(), TRACE)
    assert spec.model_digest == served_model().base.digest


@ROUTES
async def test_the_name_of_an_adapter_runs_on_the_base_model_with_it(prepare: Any) -> None:
    [spec] = (await prepare(model="tuned")).specs
    assert spec.terms.adapter == AdapterRef(digest="d" * 64, uri="adapters/tuned")
    assert spec.model_digest == served_model().base.digest


@ROUTES
async def test_an_unknown_model_is_refused(prepare: Any) -> None:
    error = await refusal(prepare, model="other")
    assert isinstance(error, ModelNotFound)
    assert error.param == "model"


@ROUTES
async def test_a_model_that_only_embeds_generates_nothing(prepare: Any) -> None:
    error = await refusal(prepare, make_preparation(make_model(can_generate=False)))
    assert (error.code, error.param) == ("unsupported_operation", "model")


async def test_a_model_without_a_chat_template_takes_plain_prompts_only() -> None:
    preparation = make_preparation(replace(make_model(), template=None))
    assert (await refusal(chat, preparation)).param == "messages"
    assert len((await complete(preparation)).specs) == 1


@ROUTES
async def test_the_operator_decides_whose_output_is_marked(prepare: Any) -> None:
    watermark = Watermark(key=b"k" * 16, gamma=0.25, delta=2.0, num_context_tokens=1)
    for tenants, expected in (((), watermark), (("acme",), watermark), (("other",), None)):
        preparation = make_preparation(watermarks=WatermarkPolicy(watermark=watermark, tenants=tenants))
        assert [spec.sampling.watermark for spec in (await prepare(preparation)).specs] == [expected]


# -- prompts and choices -----------------------------------------------------------------------------


async def test_a_conversation_is_one_prompt_that_its_output_does_not_go_on_with() -> None:
    prepared = await chat(n=3)
    [spec] = prepared.specs
    assert spec.prompt_ids == await make_model().encode_chat([ChatMessage("user", "x")])
    assert not spec.continues_prompt
    assert prepared.renderer.answer.id.startswith("chatcmpl-")


async def test_every_prompt_runs_by_itself_in_the_clients_order() -> None:
    prepared = await complete(prompt=[[5, 6], [7], [8, 9, 10]], n=2)
    assert [spec.prompt_ids for spec in prepared.specs] == [(5, 6), (7,), (8, 9, 10)]
    assert all(spec.continues_prompt for spec in prepared.specs)
    answer = prepared.renderer.answer
    assert (list(answer.prompts), answer.num_choices) == ([(5, 6), (7,), (8, 9, 10)], 2)
    assert (answer.id.partition("-")[0], answer.created, answer.model) == ("cmpl", 1234, "base")


async def test_text_prompts_are_encoded_and_keep_their_special_tokens() -> None:
    model = make_model()
    prepared = await complete(make_preparation(model), prompt=["a b", "c"])
    expected = [tuple(model.tokenizer.encode(text, add_special_tokens=True)) for text in ("a b", "c")]
    assert [spec.prompt_ids for spec in prepared.specs] == expected


async def test_each_prompt_gets_n_choices() -> None:
    prepared = await complete(prompt=[[5], [6]], n=3)
    platform = make_platform(FakeRouter(), FakeSessions([]))
    stop = (prepared.options.stop, prepared.options.include_stop)
    fanout = Fanout(prepared.specs, prepared.options.n, stop, served_model().tokenizer, platform)
    assert [len(generation.transcript.choices) for generation in fanout.generations] == [3, 3]


async def test_choices_over_all_prompts_are_bounded() -> None:
    assert (await refusal(complete, prompt=[[5]] * 64, n=3)).param == "n"
    assert (await refusal(complete, prompt=[[5]] * 65)).param == "prompt"


# -- seeds -------------------------------------------------------------------------------------------


@ROUTES
async def test_a_seed_of_the_client_is_kept(prepare: Any) -> None:
    assert [spec.seed for spec in (await prepare(seed=-7)).specs] == [-7]
    assert [spec.seed for spec in (await prepare(seed=0)).specs] == [0]


async def test_a_missing_seed_is_drawn_once_for_all_prompts() -> None:
    first, second = await complete(prompt=[[5], [6], [7]]), await complete(prompt=[[5], [6], [7]])
    assert len({spec.seed for spec in first.specs}) == len({spec.seed for spec in second.specs}) == 1
    assert first.specs[0].seed != second.specs[0].seed


# -- how many tokens ---------------------------------------------------------------------------------


async def test_defaults_of_max_tokens_are_bounded_by_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await chat()).specs[0].sampling.max_tokens == DEFAULT_MAX_TOKENS
    assert (await complete()).specs[0].sampling.max_tokens == COMPLETIONS_DEFAULT
    monkeypatch.setitem(globals(), "TENANT", replace(TENANT, plan=replace(TENANT.plan, max_tokens=8)))
    assert [(await prepare()).specs[0].sampling.max_tokens for prepare in (chat, complete)] == [8, 8]
    assert (await refusal(complete, max_tokens=9)).param == "max_tokens"


@ROUTES
async def test_max_tokens_is_kept_up_to_what_the_context_has_left(prepare: Any) -> None:
    assert (await prepare(max_tokens=7)).specs[0].sampling.max_tokens == 7
    [spec] = (await prepare(max_tokens=10**6)).specs
    assert spec.sampling.max_tokens == MAX_MODEL_LEN - len(spec.prompt_ids)


@ROUTES
async def test_the_newer_name_of_max_tokens_wins(prepare: Any) -> None:
    assert (await prepare(max_tokens=7, max_completion_tokens=8)).specs[0].sampling.max_tokens == 8


async def test_each_prompt_has_the_room_that_it_leaves() -> None:
    specs = (await complete(prompt=[[5] * 40, [5] * 10], max_tokens=1000)).specs
    assert [spec.sampling.max_tokens for spec in specs] == [24, 54]


@ROUTES
async def test_min_tokens_above_what_may_be_generated_is_refused(prepare: Any) -> None:
    error = await refusal(prepare, min_tokens=MAX_MODEL_LEN, max_tokens=MAX_MODEL_LEN)
    assert (type(error), error.param) == (BadRequest, "min_tokens")
    assert "tokens this request may generate" in error.message


@pytest.mark.parametrize(
    ("prompt", "max_input_tokens", "message"),
    [
        ([5] * 49, MAX_INPUT_TOKENS, "the limit is 48"),
        ([[5], [5] * 49], MAX_INPUT_TOKENS, "the limit is 48"),
        ([5] * MAX_MODEL_LEN, 1000, "nothing could be generated"),
        ("a b " * 500, MAX_INPUT_TOKENS, "the limit is 48"),
    ],
    ids=["input", "one of two", "context", "text"],
)
async def test_a_prompt_that_is_too_long_is_a_context_length_error(
    prompt: Any, max_input_tokens: int, message: str
) -> None:
    error = await refusal(complete, make_preparation(make_model(max_input_tokens=max_input_tokens)), prompt=prompt)
    assert isinstance(error, ContextLengthExceeded)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert message in error.message


async def test_a_conversation_that_is_too_long_is_a_context_length_error() -> None:
    error = await refusal(chat, messages=[{"role": "user", "content": "a b " * 500}])
    assert (error.code, error.param) == ("context_length_exceeded", "messages")


async def test_an_empty_prompt_is_refused() -> None:
    assert (await refusal(complete, prompt="")).param == "prompt"


# -- sampling ----------------------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", 2.5),
        ("top_p", 0),
        ("top_k", -1),
        ("min_p", 1.5),
        ("n", 17),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("prompt_logprobs", 21),
        ("stop", ["x"] * 5),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("logit_bias", {str(VOCAB_SIZE): 1}),
        ("bad_token_ids", [-1]),
        ("bad_words", [" "]),
    ],
)
async def test_limits_are_refused_by_the_name_of_their_parameter(prepare: Any, param: str, value: Any) -> None:
    error = await refusal(prepare, **{param: value})
    assert (type(error), error.param) == (BadRequest, param)


@ROUTES
async def test_parameters_reach_the_sampler(prepare: Any) -> None:
    wanted: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "min_tokens": 2, "ignore_eos": True}
    [spec] = (await prepare(**wanted, logit_bias={"5": 1}, stop_token_ids=[9])).specs
    assert {name: getattr(spec.sampling, name) for name in wanted} == wanted
    assert (spec.sampling.logit_bias, spec.sampling.stop_token_ids) == ({5: 1}, (9,))
    assert (await prepare(**dict.fromkeys(SAMPLING_ROWS))).specs[0].sampling == (await prepare()).specs[0].sampling


@ROUTES
async def test_bad_words_become_their_spellings_and_stand_after_bad_tokens(prepare: Any) -> None:
    encode = served_model().tokenizer.encode_plain
    first, later = tuple(encode("queen")), tuple(encode(" queen"))
    assert first != later
    [spec] = (await prepare(bad_words=["queen", " queen "], bad_token_ids=[3, 3, 4])).specs
    assert spec.sampling.bad_sequences == ((3,), (4,), first, later)
    assert (await prepare()).specs[0].sampling.bad_sequences == ()


# -- grammars ----------------------------------------------------------------------------------------


@ROUTES
async def test_a_grammar_is_tried_before_there_is_anything_to_place(prepare: Any) -> None:
    grammars = FakeGrammars()
    grammars.may_answer.clear()
    preparing = asyncio.create_task(prepare(make_preparation(make_model(grammars)), **REGEX))
    await grammars.is_asked.wait()
    assert not preparing.done()
    grammars.may_answer.set()
    spec = GrammarSpec(GrammarKind.REGEX, "[ab]+")
    assert [made.sampling.grammar for made in (await preparing).specs] == [spec]
    assert grammars.asked == [(spec, "structured_outputs.regex", "acme")]


@ROUTES
async def test_a_grammar_that_cannot_be_used_is_refused_by_its_parameter(prepare: Any) -> None:
    preparation = make_preparation(make_model(FakeGrammars(problem="no such thing")))
    error = await refusal(prepare, preparation, **REGEX)
    assert (error.message, error.param) == ("no such thing", "structured_outputs.regex")


async def test_a_grammar_is_tried_once_for_all_prompts_and_only_when_one_is_asked_for() -> None:
    grammars = FakeGrammars()
    preparation = make_preparation(make_model(grammars))
    await complete(preparation)
    assert grammars.asked == []
    assert len((await complete(preparation, prompt=[[5], [6]], **REGEX)).specs) == len(grammars.asked) + 1 == 2


async def test_a_prompt_that_cannot_run_tries_no_grammar() -> None:
    grammars = FakeGrammars()
    await refusal(complete, make_preparation(make_model(grammars)), prompt=[5] * 49, **REGEX)
    assert grammars.asked == []


# -- log probabilities -------------------------------------------------------------------------------


@ROUTES
async def test_no_prompt_logprobs_unless_they_are_asked_for(prepare: Any) -> None:
    assert (await prepare()).specs[0].sampling.num_prompt_logprobs is None
    [spec] = (await prepare(prompt_logprobs=0)).specs
    assert (spec.sampling.num_prompt_logprobs, spec.sampling.num_logprobs) == (0, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": 3}, None),
        ({"echo": True}, None),
        ({"logprobs": 3, "echo": True}, 3),
        ({"logprobs": 3, "echo": True, "prompt_logprobs": 2}, 3),
        ({"logprobs": 0, "echo": True, "prompt_logprobs": 2}, 2),
    ],
)
async def test_an_echo_with_logprobs_needs_those_of_the_prompt(fields: dict[str, Any], expected: int | None) -> None:
    prepared = await complete(**fields)
    assert prepared.specs[0].sampling.num_prompt_logprobs == expected
    assert prepared.renderer.answer.num_prompt_logprobs == fields.get("prompt_logprobs")
    assert prepared.renderer.answer.echoes_logprobs == ("logprobs" in fields and "echo" in fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt_logprobs": 20}, "prompt_logprobs"), ({"logprobs": 20, "echo": True}, "logprobs")],
)
async def test_prompt_logprobs_are_bounded_over_all_prompts(fields: dict[str, Any], param: str) -> None:
    length = 3000
    most = MAX_PROMPT_LOGPROBS // (21 * length)
    preparation = make_preparation(make_model(max_input_tokens=length, max_model_len=length + 100))
    assert len((await complete(preparation, prompt=[[5] * length] * most, **fields)).specs) == most
    error = await refusal(complete, preparation, prompt=[[5] * length] * (most + 1), **fields)
    assert (type(error), error.param) == (BadRequest, param)
    # Prompts of which no log probabilities are asked for are not bounded together.
    assert len((await complete(preparation, prompt=[[5] * length] * (most + 1), logprobs=20)).specs) == most + 1
