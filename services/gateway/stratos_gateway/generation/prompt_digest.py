"""Names for prompts by which routers and gateways refuse them without knowing them: keyed hashes.

The key is derived from the secret that all gateways of a platform share.  Tenant, model and adapter are hashed along:
a prompt that kills one model's workers is refused for that model and that tenant alone.
"""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Sequence

from stratos.core.requests.terms import RequestTerms

_PURPOSE = b"stratos prompt digest v1"


class PromptDigests:
    """Computes them.

    Args:
        secret: shared by all gateways of the platform.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, _PURPOSE, "sha256")

    def of(self, terms: RequestTerms, model_digest: str, inputs: Sequence[Sequence[int]]) -> bytes:
        """The name of what a tenant sends: 16 bytes.

        Args:
            terms: of the request: tenant and adapter.
            model_digest: of the base model.
            inputs: token ids: one prompt, or the inputs that are embedded together.
        """
        fields = [field.encode() for field in (terms.tenant, model_digest, terms.adapter.digest)]
        fields += [array("I", ids).tobytes() for ids in inputs]
        framed = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
        return hmac.digest(self._key, framed, "sha256")[:16]
