"""The pass that makes a generation request ready: template -> parse -> resolve -> encode -> check -> spec."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

from stratos.common.changed import changed, record
from stratos.common.errors import BadRequest, StratosError, StreamGone
from stratos.common.ids import new_nonce, new_seed
from stratos.core.requests.continuation import ContinuationState
from stratos.core.requests.limits import MAX_COUNTED_TOKENS
from stratos.core.requests.records import ChoiceState
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos.store.models.alias_forms import pinned
from stratos.text.output.parser import OutputShape
from stratos_gateway.answering.meter_tag import meter_tag
from stratos_gateway.answering.request import PreparedGeneration
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.continuations.binding import (
    can_go_on,
    check_choices,
    check_target,
    opening_of,
    other_request,
    request_binding,
)
from stratos_gateway.continuations.tokens import PARAM, ContinuationTokens
from stratos_gateway.generation.fanout import fresh_journals
from stratos_gateway.generation.prompt_names import session_key
from stratos_gateway.models.catalogue import Lookup, ModelCatalogue, ModelTarget
from stratos_gateway.models.watermark_policy import WatermarkPolicy
from stratos_gateway.openai.fields import session_of
from stratos_gateway.openai.rendering import Answer, AnswerIdentity
from stratos_gateway.openai.requests import Conversation, GenerationBody
from stratos_gateway.policies.prompts import PromptRenderer
from stratos_gateway.policies.source import NO_CONTENT
from stratos_gateway.preparation.breakpoints import pin_terms, with_breakpoints
from stratos_gateway.preparation.counts import INLINE_IDS, check_counts, num_token_ids, off_loop
from stratos_gateway.preparation.dialects import Dialect
from stratos_gateway.preparation.encoding import encode_prompts
from stratos_gateway.preparation.enforcement import enforce, finished_check
from stratos_gateway.preparation.kv_keys import no_kv_key
from stratos_gateway.preparation.options import check_request, open_ends, sampling_params
from stratos_gateway.preparation.output_shape import output_shape, special_ids, tool_mode
from stratos_gateway.preparation.texts import texts_at_hand, texts_of
from stratos_gateway.responses.state import Responses

Prompts = Sequence[tuple[int, ...]]
_Opened = ContinuationState | StratosError | None
"""What the token of a body says: an earlier answer, or why it says nothing; ``None`` where there is no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationTools:
    """Shared by all generation routes.

    Args:
        catalogue: names of models.
        prompts: templates that requests may name.
        watermarks: whose output is marked.
        responses: kept ones, which requests may go on from.
        wall_clock: seconds since the epoch, for ``created``.
        is_metered: requests are billed.
        continuations: tokens with which answers go on; ``None`` makes none.
        kv_key: seals a tenant's KV on disk; empty where nothing of it may go there.
        tenant_label: of a tenant's name, in metrics of workers.
    """

    catalogue: ModelCatalogue
    prompts: PromptRenderer = field(default_factory=lambda: PromptRenderer(NO_CONTENT))
    watermarks: WatermarkPolicy = field(default_factory=WatermarkPolicy)
    responses: Responses = field(default_factory=Responses)
    wall_clock: Callable[[], float] = time.time
    is_metered: bool = False
    continuations: ContinuationTokens | None = None
    kv_key: Callable[[Tenant], bytes] = no_kv_key
    tenant_label: Callable[[str], str] = str


@record(frozen=True, slots=True, kw_only=False)
class _Checked:
    """A request whose body was checked and whose names were resolved."""

    parsed: GenerationBody
    tenant: Tenant
    target: ModelTarget
    trace: TraceContext
    shape: OutputShape | None
    texts: tuple[str, ...]
    continued: ContinuationState | None = None
    """The earlier answer that it goes on from."""


class GenerationPreparer:
    """Preparation of one generation route.

    Args:
        tools: shared.
        dialect: of the route.
    """

    def __init__(self, tools: PreparationTools, dialect: Dialect) -> None:
        self._tools = tools
        self._dialect = dialect

    @property
    def prompt_param(self) -> str:
        """The route's name for its prompt."""
        return self._dialect.prompt_param

    async def prepare(
        self, body: dict[str, Any], tenant: Tenant, trace: TraceContext, revision: str = ""
    ) -> PreparedGeneration:
        """Check, resolve and encode, all by one revision: that of ``revision``, else that of the earlier answer.

        Raises:
            StratosError: the client's answer; ``StreamGone`` where ``revision`` is served no more, ``DependencyDown``
                where it is recorded and not loaded yet.
        """
        tools, dialect = self._tools, self._dialect
        lookup = await tools.catalogue.look_up(tenant, body.get("model"), session_of(body), revision)
        opened = await self._opened(body, tenant) if body.get(PARAM) else None
        if begun := revision or (await self._revision_of(opened) if opened is not None else ""):
            lookup = await self._as_begun(lookup, begun, is_token=not revision)
        model = lookup.served
        if not model.base.can_generate:
            raise BadRequest("this model only embeds; use /v1/embeddings", param="model", code="unsupported_operation")
        if isinstance(body.get("prompt"), dict):  # the name of a template
            body = await dialect.fill(tools.prompts, body, tenant.name)
        num_ids = 0
        if counts := num_token_ids(body.get("prompt")):
            num_ids, is_cut = sum(counts), body.get("truncate_prompt_tokens") is not None
            check_counts(counts, MAX_COUNTED_TOKENS if is_cut else model.max_input_tokens, dialect.prompt_param)
        parse = partial(dialect.parse, body, model)
        parsed = parse() if num_ids <= INLINE_IDS else await off_loop(num_ids, parse)
        del body, parse  # many times its bytes
        try:
            return await self._prepared(parsed, lookup, num_ids, tenant, trace, opened)
        except StratosError as error:
            if error.param is not None:
                error.param = dialect.name_param(error.param)
            raise

    async def _opened(self, body: Mapping[str, Any], tenant: Tenant) -> _Opened:
        """The answer that a body goes on from; a refusal of its token is told with what is wrong in the rest."""
        text = body.get(PARAM)
        if not isinstance(text, str) or not text:
            return None
        try:
            return await off_loop(len(text) // 3, opening_of(self._tools.continuations, tenant, text))
        except BadRequest as error:
            return error

    async def _revision_of(self, opened: _Opened) -> str:
        """Digest of the model of an earlier answer; "" where there is none, or its model is served no more."""
        if not isinstance(opened, ContinuationState):
            return ""
        return "" if await self._tools.catalogue.revision(opened.model_digest) is None else opened.model_digest

    async def _as_begun(self, lookup: Lookup, digest: str, *, is_token: bool) -> Lookup:
        """``lookup`` with the revision that an answer began with, whichever the name stands for by now.

        Args:
            lookup: of the name; where the platform's record says the revision, only an adapter's may have another one.
            digest: of that revision.
            is_token: a client's token says so, and not the platform's record of a stream.

        Raises:
            StreamGone: that revision is served no more; no other one may go on with its tokens.
        """
        found, catalogue = lookup.found, self._tools.catalogue
        if isinstance(found, StratosError) or found.model_digest == digest:
            return lookup
        served = await catalogue.revision(digest)
        is_same = served is not None and served.base.name == found.served.base.name
        if is_token and (not is_same or pinned(found.name) is not None):
            return lookup  # a token of another model, or of another revision than the pin: refused with the rest
        if served is None or not is_same:
            raise StreamGone("the revision of the model that this stream began with is served no more")
        begun = replace(found, served=served)
        return Lookup(served, catalogue.refusal(begun) or begun)

    async def _prepared(
        self,
        parsed: GenerationBody,
        lookup: Lookup,
        num_ids: int,
        tenant: Tenant,
        trace: TraceContext,
        opened: _Opened,
    ) -> PreparedGeneration:
        """A checked body resolved and encoded; ``param`` of its errors has the name that chats have."""
        tools, dialect, model = self._tools, self._dialect, lookup.served
        if dialect.complete is not None:
            parsed = await dialect.complete(tools.responses, parsed, tenant)
        target = lookup.target
        continued = self._continued(parsed, target, opened)
        parsed, prompts = await encode_prompts(model, parsed, tenant.plan, dialect.default_max_tokens or 1)
        if parsed.keep_fields:
            parsed = await with_breakpoints(model, parsed, prompts, tenant.plan)
        shape = output_shape(model, parsed, prompts)
        if isinstance(parsed.prompts[0], Conversation):
            parsed, shape = await enforce(model, parsed, shape, tenant.name)
        options, texts = parsed.options, texts_at_hand(parsed, tenant)
        if texts is None:
            num_ids = max(num_ids, sum(map(len, prompts)))
            texts = await off_loop(num_ids, partial(texts_of, parsed, tenant, model.tokenizer))
        num_prior = 0 if continued is None else max(map(_longest, continued.choices), default=0)
        check_request(options, prompts, tenant.plan, dialect.prompt_param, num_prior)
        if options.grammar is not None:
            await model.grammars.check(options.grammar.spec, options.grammar.param, tenant.name)
        now_s = tools.wall_clock()
        identity = AnswerIdentity(
            answer_id=dialect.make_id(),
            created=int(now_s),
            seed=_seed(options.seed, continued),
            prompts=tuple(prompts),
            model_digest=target.model_digest,
            adapter=target.adapter,
            arrived_unix_ms=int(now_s * 1000),
        )
        if continued is not None:
            check_choices(continued, len(prompts), options.n)
        prepared = self._assembled(_Checked(parsed, tenant, target, trace, shape, texts, continued), identity)
        if continued is not None and request_binding(dialect.route, options, prepared.specs) != continued.binding:
            raise other_request()
        return prepared

    def _continued(self, parsed: GenerationBody, target: ModelTarget, opened: _Opened) -> ContinuationState | None:
        """The answer that a checked request goes on from; raises what its token is refused for, and like
        ``check_target``."""
        if not parsed.options.continuation or opened is None:
            return None
        if isinstance(opened, StratosError):
            raise opened
        check_target(opened, target)
        return opened

    def _assembled(self, checked: _Checked, identity: AnswerIdentity) -> PreparedGeneration:
        """Put together what runs and what renders, from a checked request and the identity of its answer."""
        tools, dialect, parsed = self._tools, self._dialect, checked.parsed
        options, specs, served = parsed.options, self._specs(checked, identity), checked.target.served
        shown = checked.texts if checked.continued is None else ()  # prompts are echoed once
        answer = self._answer(checked, identity, specs)
        renderer = dialect.render(answer, served.tokenizer, parsed, shown)
        return PreparedGeneration(
            model=options.model,
            operation=dialect.operation,
            base_model=served.base.name,
            model_digest=identity.model_digest,
            tokenizer=served.tokenizer,
            num_tokens=sum([len(spec.prompt_ids) + options.n * spec.sampling.max_tokens for spec in specs]),
            num_sequences=options.n * len(specs),
            texts=checked.texts,
            refusal=partial(tools.catalogue.refusal, checked.target),
            constrained="" if options.grammar is None else options.grammar.kind,
            reasoning_budget=parsed.reasoning_budget,
            body=parsed,
            specs=specs,
            renderer=renderer,
            keep=partial(dialect.keep, tools.responses, parsed, checked.tenant, renderer),
            identity=identity,
            rebuilt=partial(self._assembled, checked),
            revised=lambda body, revision: self.prepare(body, checked.tenant, checked.trace, revision),
            token_of=partial(self._token_of, checked, identity, specs) if any(s.open_ends for s in specs) else None,
            continued=checked.continued,
            check=finished_check(answer, parsed, is_part=checked.continued is not None),
        )

    def _token_of(
        self,
        checked: _Checked,
        identity: AnswerIdentity,
        specs: Sequence[GenerationSpec],
        choices: Sequence[Sequence[ChoiceState]],
    ) -> str:
        """The token with which an answer goes on."""
        tokens, wall_clock = self._tools.continuations, identity.wall_clock or self._tools.wall_clock
        assert tokens is not None, "else no end is open"
        state = ContinuationState(
            answer_id=identity.answer_id,
            choices=tuple(map(tuple, choices)),
            seed=identity.seed,
            model_digest=identity.model_digest,
            adapter_digest=identity.adapter.digest,
            binding=request_binding(self._dialect.route, checked.parsed.options, specs),
            expires_unix_s=int(wall_clock()) + tokens.kept_s,
        )
        return tokens.make(checked.tenant.id, state)

    def _specs(self, checked: _Checked, identity: AnswerIdentity) -> tuple[GenerationSpec, ...]:
        """One per prompt; all have the seed."""
        tools, dialect, body, tenant = self._tools, self._dialect, checked.parsed, checked.tenant
        options, target, trace, shape = body.options, checked.target, checked.trace, checked.shape
        model = target.served
        if options.max_tokens is None:
            options = changed(options, max_tokens=dialect.default_max_tokens or model.default_max_tokens)
        shown: frozenset[int] = frozenset() if shape is None else frozenset(special_ids(model, shape).values())
        if options.shows_special:
            shown |= model.tokenizer.special_ids
        facts = (tenant, target, dialect.route, trace, identity.arrived_unix_ms, options.metadata)
        tag = meter_tag(*facts, is_whole=not options.stream) if tools.is_metered else None
        promised_ms = tenant.plan.itl_p99_ms
        mark = tools.watermarks.watermark_for(tenant.name, target.listed_names)
        label, kv_key = tools.tenant_label(tenant.name), tools.kv_key(tenant)
        ids = identity.request_ids or ("",) * len(identity.prompts)
        nonce, is_open = new_nonce(), can_go_on(tools.continuations, tenant, body, shape)
        own = tenant.terms(identity.adapter, nonce, label=label, kv_key=kv_key)
        prior = _priors(checked.continued, len(identity.prompts))
        sampling = [
            sampling_params(options, len(prompt), tenant.plan, model, mark, _longest(choices))
            for prompt, choices in zip(identity.prompts, prior, strict=True)
        ]
        if is_open and options.n * len(prior) > 1:  # one that has ended cannot be told more once the others have
            is_open = _has_room(tools.continuations, options.n * sum(params.max_tokens for params in sampling))
        return tuple(
            GenerationSpec(
                terms=changed(own, pins=pin_terms(tenant.plan, marks)) if marks else own,
                model_digest=identity.model_digest,
                model=model.base.name,
                prompt_ids=prompt,
                sampling=params,
                seed=identity.seed,
                trace=trace,
                session_key=session_key(tenant.cache_salt, tenant.name, options.session),
                continues_prompt=dialect.continues_prompt or body.continues_prompt,
                shown_ids=shown,
                meter=tag,
                promised_itl_us=None if promised_ms is None else promised_ms * 1000,
                request_id=request_id,
                epoch=identity.epoch,
                prior=choices,
                open_ends=open_ends(options, len(prompt), model, params) if is_open else frozenset(),
            )
            for prompt, request_id, choices, params, marks in zip(
                identity.prompts, ids, prior, sampling, body.breakpoints or repeat(()), strict=False
            )
        )

    def _answer(self, checked: _Checked, identity: AnswerIdentity, specs: Sequence[GenerationSpec]) -> Answer:
        options = checked.parsed.options
        return Answer(
            id=identity.answer_id,
            created=identity.created,
            model=options.model,
            num_logprobs=options.num_logprobs,
            num_prompt_logprobs=options.num_prompt_logprobs,
            echoes_logprobs=options.num_echo_logprobs is not None,
            return_token_ids=options.return_token_ids,
            names_token_ids=options.names_token_ids,
            include_usage=options.include_usage,
            continuous_usage=options.continuous_usage,
            hides_reasoning=options.hides_reasoning,
            prompts=identity.prompts,
            num_choices=options.n,
            shape=checked.shape,
            tool_mode=tool_mode(checked.parsed),
            wall_clock=identity.wall_clock or self._tools.wall_clock,
            prior_texts=() if checked.continued is None else _prior_texts(checked, specs[0]),
        )


def _prior_texts(checked: _Checked, spec: GenerationSpec) -> Sequence[str]:
    """Text that the earlier answer of a conversation showed of each choice; none where it is not looked at."""
    options = checked.parsed.options
    if checked.shape is None:
        return ()
    stop, tokenizer = (options.stop, options.include_stop), checked.target.served.tokenizer
    return [journal.prior_text for journal in fresh_journals(spec, options.n, stop, tokenizer)]


def _seed(wanted: int | None, continued: ContinuationState | None) -> int:
    if continued is not None:
        return continued.seed
    return new_seed() if wanted is None else wanted


def _priors(continued: ContinuationState | None, num_prompts: int) -> Sequence[tuple[ChoiceState, ...]]:
    """Choices that each prompt goes on from."""
    return ((),) * num_prompts if continued is None else continued.choices


def _has_room(tokens: ContinuationTokens | None, num_tokens: int) -> bool:
    return tokens is not None and tokens.can_hold(num_tokens)


def _longest(choices: Sequence[ChoiceState]) -> int:
    return max([len(choice.emitted_ids) for choice in choices]) if choices else 0
