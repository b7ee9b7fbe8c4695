"""Terms of requests, written short."""

from __future__ import annotations

import dataclasses
from typing import Any

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


def with_terms(request: Any, **fields: Any) -> Any:
    """The same request on other terms; ``fields`` as of ``make_terms``."""
    return dataclasses.replace(request, terms=make_terms(request.terms, **fields))


def pop_terms(fields: dict[str, Any]) -> RequestTerms:
    """Take the keywords of ``make_terms`` out of ``fields``."""
    return make_terms(**{name: fields.pop(name) for name in TERMS_FIELDS & fields.keys()})
