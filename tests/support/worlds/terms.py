"""Terms of requests, written short."""

from __future__ import annotations

import dataclasses
from typing import Any

from stratos.api.common.v1 import common_pb2
from stratos.core.adapter import AdapterRef
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms

TERMS_FIELDS = frozenset(field.name for field in dataclasses.fields(RequestTerms)) | {"adapter_digest", "adapter_uri"}
"""Keywords of ``make_terms``."""


def make_terms(
    base: RequestTerms = DEFAULT_TERMS, *, adapter_digest: str = "", adapter_uri: str = "", **fields: Any
) -> RequestTerms:
    """``base`` with other fields; the adapter is given by digest and uri, or as ``adapter``."""
    if adapter_digest or adapter_uri:
        fields["adapter"] = AdapterRef(digest=adapter_digest, uri=adapter_uri)
    return dataclasses.replace(base, **fields)


def pop_terms_pb(fields: dict[str, Any]) -> common_pb2.RequestTerms:
    """Take the fields of the message out of ``fields``; the adapter's are ``adapter_digest`` and ``adapter_uri``."""
    names = common_pb2.RequestTerms.DESCRIPTOR.fields_by_name.keys() & fields.keys()
    values = {"tenant": "t"} | {name: fields.pop(name) for name in names}
    adapter = {name: fields.pop(f"adapter_{name}") for name in ("digest", "uri") if f"adapter_{name}" in fields}
    return common_pb2.RequestTerms(adapter=common_pb2.AdapterRef(**adapter) if adapter else None, **values)


def with_terms(request: Any, **fields: Any) -> Any:
    """The same request with other fields, its own or those of ``make_terms``."""
    terms = {name: fields.pop(name) for name in TERMS_FIELDS & fields.keys()}
    return dataclasses.replace(request, terms=make_terms(request.terms, **terms), **fields)


def pop_terms(fields: dict[str, Any]) -> RequestTerms:
    """Take the keywords of ``make_terms`` out of ``fields``."""
    return make_terms(**{name: fields.pop(name) for name in TERMS_FIELDS & fields.keys()})
