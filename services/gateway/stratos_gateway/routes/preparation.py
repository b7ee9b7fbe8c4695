"""From a checked body to what runs: names resolved, prompts encoded, seed drawn, answer shaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stratos.common.errors import BadRequest, StratosError
from stratos.common.ids import new_id, new_nonce, new_seed
from stratos.core.adapter import BASE_MODEL
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.limits import check_prompt_logprobs
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos.core.trace import TraceContext
from stratos_gateway.generation.generation import GenerationSpec
from stratos_gateway.generation.prefix_names import session_key
from stratos_gateway.models.catalogue import ModelCatalogue, ModelTarget
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.watermark_policy import WatermarkPolicy
from stratos_gateway.openai.requests import GenerationOptions, parse_chat, parse_completion
from stratos_gateway.openai.responses import Answer, ChatRenderer, CompletionRenderer, Renderer
from stratos_gateway.overflow.request import ExternalRequest, external_chat, external_completion
from stratos_gateway.policies.prompts import PromptRenderer
from stratos_gateway.policies.source import NO_CONTENT
from stratos_gateway.routes.meter_tag import meter_tag
from stratos_gateway.routes.plan_limits import check_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that is ready to run."""

    options: GenerationOptions
    specs: tuple[GenerationSpec, ...]
    renderer: Renderer
    refusal: Callable[[], StratosError | None]
    """Why its model is not served any more."""
    texts: tuple[str, ...]
    """Of its input, for content policies."""
    external: ExternalRequest | None
    """As what it can go to an external endpoint; ``None`` where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What both generation routes need to make a request ready.

    Args:
        model: tokenizer, template, limits.
        catalogue: names of models.
        default_max_tokens: of a chat request that names none.
        prompts: templates that requests may name.
        watermarks: whose output is marked.
        wall_clock: seconds since the epoch, for ``created``.
        is_metered: requests are billed.
    """

    model: ServedModel
    catalogue: ModelCatalogue
    default_max_tokens: int
    prompts: PromptRenderer = field(default_factory=lambda: PromptRenderer(NO_CONTENT))
    watermarks: WatermarkPolicy = field(default_factory=WatermarkPolicy)
    wall_clock: Callable[[], float] = time.time
    is_metered: bool = False

    async def chat(self, body: dict[str, Any], tenant: Tenant, trace: TraceContext) -> Prepared:
        """/v1/chat/completions; raises ``StratosError`` with the client's answer."""
        self._check_generates()
        body = await self.prompts.chat_body(body, tenant.name)
        request = parse_chat(body, self.model.base.vocab_size)
        target = await self.catalogue.resolve(tenant, request.options.model)
        prompts = [await self.model.encode_chat(request.messages)]
        specs = await self._specs(request.options, prompts, "messages", tenant, target, trace)
        answer = self._answer("chatcmpl", request.options, prompts)
        texts = tuple(message.content for message in request.messages)
        renderer = ChatRenderer(answer, self.model.tokenizer)
        return Prepared(
            options=request.options,
            specs=specs,
            renderer=renderer,
            refusal=partial(self.catalogue.refusal, target),
            texts=texts,
            external=external_chat(request) if _may_leave(tenant, target, specs) else None,
        )

    async def completion(self, body: dict[str, Any], tenant: Tenant, trace: TraceContext) -> Prepared:
        """/v1/completions; raises like ``chat``."""
        self._check_generates()
        body = await self.prompts.completion_body(body, tenant.name)
        request = parse_completion(body, self.model.base.vocab_size)
        target = await self.catalogue.resolve(tenant, request.options.model)
        prompts = [await self.model.encode_prompt(prompt) for prompt in request.prompts]
        tokenizer = self.model.tokenizer
        texts = tuple(
            p if isinstance(p, str) else tokenizer.decode(p, skip_special=False)
            for p in request.prompts
            if request.echo or isinstance(p, str) or tenant.plan.content_policy
        )
        echoes = texts if request.echo else ()
        specs = await self._specs(request.options, prompts, "prompt", tenant, target, trace)
        specs = tuple(replace(spec, continues_prompt=True) for spec in specs)
        renderer = CompletionRenderer(self._answer("cmpl", request.options, prompts), tokenizer, echoes)
        return Prepared(
            options=request.options,
            specs=specs,
            renderer=renderer,
            refusal=partial(self.catalogue.refusal, target),
            texts=texts,
            external=external_completion(request) if _may_leave(tenant, target, specs) else None,
        )

    def _check_generates(self) -> None:
        if not self.model.base.can_generate:
            raise BadRequest("this model only embeds; use /v1/embeddings", param="model", code="unsupported_operation")

    async def _specs(
        self,
        options: GenerationOptions,
        prompts: Sequence[tuple[int, ...]],
        prompt_param: str,
        tenant: Tenant,
        target: ModelTarget,
        trace: TraceContext,
    ) -> tuple[GenerationSpec, ...]:
        check_plan(options, prompts, tenant.plan, prompt_param)
        param = "prompt_logprobs" if options.num_echo_logprobs is None else "logprobs"
        check_prompt_logprobs(sum(map(len, prompts)), _num_prompt_logprobs(options), param)
        if options.grammar is not None:
            await self.model.grammars.check(options.grammar.spec, options.grammar.param, tenant.name)
        seed = new_seed() if options.seed is None else options.seed
        nonce = new_nonce()
        route = "chat" if prompt_param == "messages" else "completion"
        watermark = self.watermarks.watermark_for(tenant.name, target.name)
        return tuple(
            GenerationSpec(
                terms=tenant.terms(target.adapter, nonce),
                model_digest=target.model_digest,
                prompt_ids=prompt,
                sampling=replace(self._sampling(options, len(prompt), tenant.plan), watermark=watermark),
                seed=seed,
                trace=trace,
                meter=self._tag(tenant, target, route, trace),
                session_key=session_key(tenant.cache_salt, tenant.name, options.session),
            )
            for prompt in prompts
        )

    def _tag(self, tenant: Tenant, target: ModelTarget, route: str, trace: TraceContext) -> MeterTag | None:
        if not self.is_metered:
            return None
        return meter_tag(self.model.base, tenant, target, route, trace, int(self.wall_clock() * 1000))

    def _sampling(self, options: GenerationOptions, num_prompt_tokens: int, plan: Plan) -> SamplingParams:
        wanted = self.default_max_tokens if options.max_tokens is None else options.max_tokens
        max_tokens = min(wanted, plan.max_tokens or wanted, self.model.max_tokens_left(num_prompt_tokens))
        if options.sampling.get("min_tokens", 0) > max_tokens:
            text = f"min_tokens must not be above the {max_tokens} tokens this request may generate"
            raise BadRequest(text, param="min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            num_logprobs=options.num_logprobs,
            num_prompt_logprobs=_num_prompt_logprobs(options),
            bad_sequences=self._bad_sequences(options),
            grammar=None if options.grammar is None else options.grammar.spec,
            **options.sampling,
        )

    def _bad_sequences(self, options: GenerationOptions) -> tuple[tuple[int, ...], ...]:
        """Bad tokens, and the spellings of bad words: at the beginning of a text and after a blank."""
        encode = self.model.tokenizer.encode_plain
        words = [tuple(encode(blank + word.strip())) for word in options.bad_words for blank in ("", " ")]
        return tuple(dict.fromkeys([*((token,) for token in options.bad_token_ids), *words]))

    def _answer(self, prefix: str, options: GenerationOptions, prompts: Sequence[tuple[int, ...]]) -> Answer:
        return Answer(
            id=new_id(prefix),
            created=int(self.wall_clock()),
            model=options.model,
            num_logprobs=options.num_logprobs,
            num_prompt_logprobs=options.num_prompt_logprobs,
            echoes_logprobs=options.num_echo_logprobs is not None,
            return_token_ids=options.return_token_ids,
            include_usage=options.include_usage,
            prompts=prompts,
            num_choices=options.n,
        )


def _may_leave(tenant: Tenant, target: ModelTarget, specs: Sequence[GenerationSpec]) -> bool:
    """Whether an external endpoint could serve a request, and the tenant's plan lets it."""
    is_marked = any(spec.sampling.watermark is not None for spec in specs)
    return not (tenant.plan.resident_only or is_marked) and target.adapter == BASE_MODEL and len(specs) == 1


def _num_prompt_logprobs(options: GenerationOptions) -> int | None:
    """Most likely tokens at each place of the prompt that some part of the answer needs."""
    wanted = [num for num in (options.num_prompt_logprobs, options.num_echo_logprobs) if num is not None]
    return max(wanted, default=None)
