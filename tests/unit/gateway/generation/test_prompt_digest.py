"""Names of prompts: one per tenant, model, adapter and content, and none without the secret."""

from __future__ import annotations

import hmac
from array import array

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


def test_the_name_is_an_hmac_so_gateways_of_other_builds_agree() -> None:
    key = hmac.digest(b"secret", b"stratos prompt digest v1", "sha256")
    fields = [b"t", b"m", b"d", array("I", (1, 2, 3)).tobytes(), array("I", (4,)).tobytes()]
    framed = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    found = PromptDigests(b"secret").of(TERMS, "m", [(1, 2, 3), (4,)])
    assert found == hmac.digest(key, framed, "sha256")[:16]
