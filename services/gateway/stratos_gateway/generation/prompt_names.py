"""Names of a prompt that do not tell it: its digest, its first blocks, its beginnings in the ledger, its session.

Routers and gateways refuse a convicted prompt by its digest, a keyed hash.  The key is derived from the secret that all
gateways of a platform share; tenant, model and adapter are hashed along: a prompt that kills one model's workers is
refused for that model and that tenant alone.

Block names are parts of salted hashes, and salts stay here.  How blocks are cut and hashed is known from placements:
the router says it where a policy looks at names, so the first request of a model after a start has none.
"""

from __future__ import annotations

import hashlib
import hmac
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.cache_changes import SHORT_HASH_BYTES, CacheLayout, short_hashes
from stratos.core.ledger.prefix_hashes import PREFIX_TOKENS, prefix_hashes, prefix_root
from stratos.core.placement import Placement
from stratos.core.requests.terms import RequestTerms
from stratos.store.data_keys import Purpose
from stratos.store.sealed.answer_store import SubKey
from stratos_gateway.answering.spec import GenerationSpec

MAX_MODELS = 64
MAX_NAMED = 1024
"""Tenants, models and adapters whose digests are begun."""
_SHA256_BLOCK_BYTES = 64
_MASKS = bytes(byte ^ 0x36 for byte in range(256)), bytes(byte ^ 0x5C for byte in range(256))
_PURPOSE, _SESSION_DOMAIN = b"stratos prompt digest v1", b"stratos-session-v1"


class PromptDigests:
    """Digests of prompts.

    Args:
        secret: shared by all gateways of the platform.
    """

    def __init__(self, secret: bytes) -> None:
        key = hmac.digest(secret, _PURPOSE, "sha256").ljust(_SHA256_BLOCK_BYTES, b"\0")
        # HMAC by hand (RFC 2104): two hashes that have the key are copied for each prompt, in half the time.
        self._inner, self._outer = (hashlib.sha256(key.translate(mask)) for mask in _MASKS)
        self._begun = lru_cache(MAX_NAMED)(self._begin)
        """Inner hashes that have tenant, model and adapter as well, of which there are few."""

    def of(self, terms: RequestTerms, model_digest: str, inputs: Sequence[Sequence[int]]) -> bytes:
        """The name of what a tenant sends: 16 bytes.

        Args:
            terms: of the request: tenant and adapter.
            model_digest: of the base model.
            inputs: token ids: one prompt, or the inputs that are embedded together.
        """
        inner, outer = self._begun(terms.tenant, model_digest, terms.adapter.digest).copy(), self._outer.copy()
        for ids in inputs:
            inner.update(_framed(array("I", ids).tobytes()))
        outer.update(inner.digest())
        return outer.digest()[:16]

    def _begin(self, *names: str) -> hashlib._Hash:
        begun = self._inner.copy()
        begun.update(b"".join(_framed(name.encode()) for name in names))
        return begun


def _framed(field: bytes) -> bytes:
    return len(field).to_bytes(8, "little") + field


class PrefixNames:
    """Names of prompts' first blocks; shared by all requests of the process.

    Args:
        max_blocks: of a prompt that are named; 0 names none.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._layouts: OrderedDict[str, CacheLayout] = OrderedDict()

    def learn(self, model_digest: str, placement: Placement) -> None:
        """A placement says how the blocks of its model are cut, or that names are of no use."""
        if placement.cache_layout is None:
            self._layouts.pop(model_digest, None)
            return
        self._layouts[model_digest] = placement.cache_layout
        self._layouts.move_to_end(model_digest)
        if len(self._layouts) > MAX_MODELS:
            self._layouts.popitem(last=False)

    def names(self, terms: RequestTerms, model_digest: str, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """Names of the first full blocks of a prompt, its last token excluded as the workers do."""
        layout = self._layouts.get(model_digest)
        if layout is None or not self._max_blocks:
            return ()
        num_tokens = min(len(prompt_ids) - 1, self._max_blocks * layout.block_size)
        if num_tokens < layout.block_size:
            return ()
        root = chain_root(layout.identity, terms.adapter.digest, terms.cache_salt)
        return short_hashes(block_hashes(root, prompt_ids[:num_tokens], layout.block_size))


class PrefixHashes:
    """Hashes of prompts' beginnings for the ledger; shared by all requests of the process.

    Args:
        sub_key: of a tenant.
        max_hashes: of a prompt; 0 makes none.
    """

    def __init__(self, sub_key: SubKey, max_hashes: int) -> None:
        self._sub_key = sub_key
        self._max_hashes = max_hashes

    def of(self, spec: GenerationSpec) -> str:
        """The hashes of a prompt, as its entry has them; empty where it is short, or its tenant has no data key.

        Prompts that share no prefix cache have no equal ones.  The longest prompts take half a millisecond, so this is
        for the end of a request.
        """
        terms = spec.terms
        if not self._max_hashes or len(spec.prompt_ids) < PREFIX_TOKENS:
            return ""
        if (key := self._sub_key(terms.tenant, Purpose.PREFIX_HASHES)) is None:
            return ""
        root = prefix_root(key, terms.cache_salt, spec.model_digest, terms.adapter.digest)
        return prefix_hashes(root, spec.prompt_ids, self._max_hashes)


NO_PREFIX_HASHES = PrefixHashes(lambda tenant_id, purpose: None, 0)


def session_key(cache_salt: bytes, tenant: str, text: str) -> int:
    """64 bits that stand for what a client calls its session; 0 for nothing. Tells nothing without the salt."""
    if not text:
        return 0
    digest = hashlib.sha256(_SESSION_DOMAIN)
    for part in (cache_salt, tenant.encode(), text.encode()):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest()[:SHORT_HASH_BYTES], "little")
