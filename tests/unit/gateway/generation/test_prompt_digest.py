"""Names of prompts: one per tenant, model, adapter and content, and none without the secret."""

from __future__ import annotations

from stratos_gateway.generation.prompt_names import PromptDigests
from tests.support.worlds.terms import make_terms

TERMS = make_terms(tenant="t", adapter_digest="d")


def test_what_differs_has_another_name() -> None:
    digests = PromptDigests(b"secret")
    names = {
        digests.of(TERMS, "m", [(1, 2, 3)]),
        digests.of(make_terms(tenant="u", adapter_digest="d"), "m", [(1, 2, 3)]),
        digests.of(make_terms(tenant="t", adapter_digest="e"), "m", [(1, 2, 3)]),
        digests.of(TERMS, "n", [(1, 2, 3)]),
        digests.of(TERMS, "m", [(1, 2)]),
        digests.of(TERMS, "m", [(1, 2), (3,)]),
        digests.of(TERMS, "m", [(1,), (2, 3)]),
        PromptDigests(b"other").of(TERMS, "m", [(1, 2, 3)]),
    }
    assert len(names) == 8
    assert digests.of(TERMS, "m", [[1, 2, 3]]) in names, "all gateways with the secret agree"
