"""``prompt: {id, version, variables}`` of a request -> what it stands for, before the body is read like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from stratos.common.errors import BadRequest, PromptNotFound
from stratos.core.tenancy.content import PromptVersion
from stratos.text.tenant_templates import CompiledPrompt, check_variables
from stratos_gateway.openai.fields import Fields
from stratos_gateway.policies.source import ContentSource

_MAX_COMPILED = 512
_INLINE_CHARS = 2048
"""A template that may render more than that is rendered in a thread."""


class PromptRenderer:
    """Renders templates of all tenants.

    Args:
        source: where they are.
    """

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self._compiled = lru_cache(maxsize=_MAX_COMPILED)(CompiledPrompt)

    async def chat_body(self, body: dict[str, Any], tenant: str) -> dict[str, Any]:
        """The body with the template's messages before its own; untouched where it names no template.

        Raises:
            PromptNotFound: no such template or version.
            BadRequest: its variables are not the template's, or it is no template for chats.
        """
        wanted = body.get("prompt")
        if not isinstance(wanted, dict):
            return body
        messages = await self._messages(wanted, tenant)
        given = body.get("messages")
        if given is not None and not isinstance(given, list):
            return body  # refused where messages are checked
        return {**{name: body[name] for name in body if name != "prompt"}, "messages": [*messages, *(given or ())]}

    async def response_body(self, body: dict[str, Any], tenant: str) -> dict[str, Any]:
        """The body with the template's messages before its input; raises like ``chat_body``."""
        wanted, given = body.get("prompt"), body.get("input")
        if not isinstance(wanted, dict):
            return body
        messages = await self._messages(wanted, tenant)
        if given is not None and not isinstance(given, list | str):
            return body  # refused where the input is checked
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        return {**{name: body[name] for name in body if name != "prompt"}, "input": [*messages, *items]}

    async def completion_body(self, body: dict[str, Any], tenant: str) -> dict[str, Any]:
        """The body with the template's text as its prompt; raises like ``chat_body``."""
        wanted = body.get("prompt")
        if not isinstance(wanted, dict):
            return body
        version, variables = self._resolve(wanted, tenant)
        if version.text is None:
            raise BadRequest("this prompt template has messages, for /v1/chat/completions", param="prompt.id")
        return {**body, "prompt": (await self._render(version, variables))[0]}

    async def _messages(self, wanted: dict[str, Any], tenant: str) -> list[dict[str, str]]:
        version, variables = self._resolve(wanted, tenant)
        if not version.messages:
            raise BadRequest("this prompt template is a text, for /v1/completions", param="prompt.id")
        texts = await self._render(version, variables)
        return [{"role": message.role, "content": text} for message, text in zip(version.messages, texts, strict=True)]

    def _resolve(self, wanted: dict[str, Any], tenant: str) -> tuple[PromptVersion, Mapping[str, Any]]:
        fields = Fields(wanted, "prompt.")
        name, number, variables = fields.take("id"), fields.take("version"), fields.take("variables")
        fields.end()
        if not isinstance(name, str) or not name:
            raise BadRequest("prompt.id must be the name of a prompt template", param="prompt.id")
        if variables is not None and not isinstance(variables, dict):
            raise BadRequest("prompt.variables must be an object", param="prompt.variables")
        template = self._source.template(tenant, name)
        if template is None:
            raise PromptNotFound(f"there is no prompt template {name[:64]!r}", param="prompt.id")
        version = template.versions.get(max(template.versions) if number is None else _number(number))
        if version is None:
            text = f"the prompt template {name!r} has no version {str(number)[:20]}"
            raise PromptNotFound(text, param="prompt.version")
        return version, variables or {}

    async def _render(self, version: PromptVersion, given: Mapping[str, Any]) -> list[str]:
        prompts = [self._compiled(source) for source in version.sources]
        wanted = frozenset[str]().union(*(prompt.variables for prompt in prompts))
        values = check_variables(given, wanted, version.defaults)

        def render() -> list[str]:
            return [prompt.render({name: values[name] for name in prompt.variables}) for prompt in prompts]

        is_short = sum(len(str(value)) for value in values.values()) + sum(map(len, version.sources)) <= _INLINE_CHARS
        return render() if is_short else await asyncio.to_thread(render)


def _number(value: Any) -> int:
    """A version as a client writes it, 2 or "2"."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
        return int(value)
    raise BadRequest("prompt.version must be a number", param="prompt.version")
