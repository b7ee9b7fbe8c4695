"""Responses that a client comes back to: what they go on from, and how they are kept for the next one.

    previous_response_id -> its input and output stand before the input
    store: true          -> kept before the last event leaves; if that fails the client is told in its place
    on a socket          -> its last response is found in the socket's own memory as well, stored or not

A response holds the whole conversation up to its end, so one look finds all that the next one needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import orjson
from redis.exceptions import RedisError

from stratos.common.errors import BadRequest, DependencyDown, ResponseStoreDown, StratosError
from stratos.core.requests.limits import MAX_MESSAGES
from stratos.core.requests.pins import MAX_BREAKPOINTS
from stratos.core.tenant import Tenant
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.openai.messages import latest_marks, marking_fields
from stratos_gateway.openai.rendering import Renderer
from stratos_gateway.openai.requests import Conversation, GenerationBody
from stratos_gateway.responses.items import check_input, with_instructions
from stratos_gateway.responses.local import LOCAL, KeptResponse, LocalResponse
from stratos_gateway.responses.rendering import ResponseRenderer
from stratos_gateway.responses.requests import ResponseBody
from stratos_gateway.responses.stored_items import Item, stored_items

CALL_S = 5.0
"""Longest time of one call of the store, large bodies included."""
_FORMAT = 1


class SealedResponses(Protocol):
    """Where they are; ``store.sealed.ResponseStore`` is the one of a gateway. All raise ``DependencyDown``."""

    async def check(self, tenant_id: str) -> None:
        """Say before anything is computed whether a response of the tenant could be kept."""
        ...

    async def put(self, tenant_id: str, response_id: str, content: bytes) -> None:
        """Keep a response."""
        ...

    async def find(self, tenant_id: str, response_id: str) -> bytes | None:
        """A response of the tenant, or ``None``."""
        ...

    async def delete(self, tenant_id: str, response_id: str) -> bool:
        """Remove a response; whether there was one."""
        ...


class Responses:
    """Kept responses of all tenants, for requests and for routes.

    Args:
        store: of all gateways; ``None`` keeps none.
        by_default: those are kept whose request does not say.
    """

    def __init__(self, store: SealedResponses | None = None, *, by_default: bool = False) -> None:
        self._store = store
        self._by_default = by_default

    async def find(self, tenant: Tenant, response_id: str) -> KeptResponse | None:
        """A kept response of the tenant.

        Raises:
            ResponseStoreDown: the store does not answer.
        """
        if self._store is None:
            return None
        async with _answering():
            content = await self._store.find(tenant.id, response_id)
        return None if content is None else await asyncio.to_thread(_decoded, content)

    async def delete(self, tenant: Tenant, response_id: str) -> bool:
        """Delete one; whether there was one. Raises like ``find``."""
        if self._store is None:
            return False
        async with _answering():
            return await self._store.delete(tenant.id, response_id)

    async def complete(self, parsed: GenerationBody, tenant: Tenant) -> GenerationBody:
        """The body with what it goes on from, and whether its response is kept.

        Raises:
            BadRequest: this gateway keeps none, or there is no such response.
            ResponseStoreDown: the store does not answer.
        """
        assert isinstance(parsed, ResponseBody), "this dialect's own"
        local = LOCAL.get()
        if self._store is None and (local is None or parsed.store):
            return _without_store(parsed)
        previous = await self._previous(parsed.previous, tenant, local)
        stores = self._store is not None and await self._will_store(parsed.store, tenant)
        items = [*previous, *stored_items(parsed.input)] if stores or local is not None else None
        if previous:
            parsed = await _continued(parsed, previous)
        return replace(parsed, input="", items=items, echoed={**parsed.echoed, "store": stores})

    async def keep(self, parsed: GenerationBody, tenant: Tenant, renderer: Renderer, usage: Usage) -> None:
        """Keep a response whose output has ended; nothing where it is not to be kept.

        Raises:
            ResponseStoreDown: it could not be kept.
        """
        if not isinstance(parsed, ResponseBody) or parsed.items is None:
            return
        assert isinstance(renderer, ResponseRenderer), "goes with the body"
        response, local = renderer.ended(usage), LOCAL.get()
        store = self._store if parsed.echoed["store"] else None
        if local is None and store is None:
            return
        value = {"format": _FORMAT, "response": response, "input": list(parsed.items)}
        content = await asyncio.to_thread(orjson.dumps, value)
        if local is not None:
            local.keep(response["id"], content)
        if store is not None:
            async with _answering():
                await store.put(tenant.id, renderer.answer.id, content)

    async def _previous(self, response_id: str, tenant: Tenant, local: LocalResponse | None) -> list[Item]:
        if not response_id:
            return []
        content = None if local is None else local.find(response_id)
        if content is None:
            found = await self.find(tenant, response_id)
        else:
            found = await asyncio.to_thread(_decoded, content)
        if found is None:
            text = f"there is no response {response_id[:64]!r}, or none any more"
            if local is not None and local.is_too_large(response_id):
                text += f": with its conversation it has more than {local.max_bytes} bytes, so the socket forgot it"
            raise BadRequest(text, param="previous_response_id", code="previous_response_not_found")
        return found.conversation

    async def _will_store(self, wanted: bool | None, tenant: Tenant) -> bool:
        """Whether it is kept; without a word of its client it is where it can be."""
        if wanted is False or (wanted is None and not self._by_default):
            return False
        assert self._store is not None, "looked at before"
        try:
            async with _answering():
                await self._store.check(tenant.id)
        except ResponseStoreDown:
            if wanted:
                raise
            return False
        return True


def _without_store(parsed: ResponseBody) -> ResponseBody:
    for name, is_wanted in (("store", parsed.store), ("previous_response_id", parsed.previous)):
        if is_wanted:
            text = f"{name}: this gateway keeps no responses; send the items of the conversation as input"
            raise BadRequest(text, param=name, code="unsupported_parameter")
    return replace(parsed, input="")


async def _continued(parsed: ResponseBody, previous: Sequence[Item]) -> ResponseBody:
    """The body with earlier items before its own; instructions are not carried over, as at OpenAI."""
    [conversation] = parsed.prompts
    assert isinstance(conversation, Conversation), "of a response"
    if len(previous) + len(parsed.messages) > MAX_MESSAGES:
        text = f"the conversation may hold at most {MAX_MESSAGES} items, earlier ones included"
        raise BadRequest(text, param="input")
    earlier = await asyncio.to_thread(check_input, previous)
    messages = with_instructions(parsed.instructions, (*earlier.messages, *parsed.messages))
    messages = latest_marks(messages, MAX_BREAKPOINTS)
    names = dict.fromkeys([*parsed.keep_fields, *marking_fields(messages)])
    return replace(parsed, prompts=(replace(conversation, messages=messages),), keep_fields=tuple(names))


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Raise ``ResponseStoreDown`` for a store that does not answer."""
    try:
        async with asyncio.timeout(CALL_S):
            yield
    except (DependencyDown, RedisError, TimeoutError) as error:
        raise ResponseStoreDown(f"stored responses: {error}") from error
    except StratosError as error:
        if error.http_status < 500:
            raise
        raise ResponseStoreDown(f"stored responses: {error.message}") from error


def _decoded(content: bytes) -> KeptResponse | None:
    """A kept response; ``None`` for what another version wrote."""
    value = orjson.loads(content)
    return KeptResponse(value["response"], value["input"]) if value.get("format") == _FORMAT else None
