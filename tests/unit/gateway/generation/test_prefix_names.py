"""Names of a prompt's blocks are those that the engine gives them, and tell nothing without the tenant's salt."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from stratos.core.adapter import AdapterRef
from stratos.core.cache_changes import CacheLayout, short_hashes
from stratos.core.ledger.prefix_hashes import split_prefix_hashes
from stratos.core.placement import Placement
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.store.data_keys import Purpose, sub_key
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.prompt_names import NO_PREFIX_HASHES, PrefixHashes, PrefixNames, session_key
from tests.support.worlds.engine_driver import drain, make_request
from tests.support.worlds.fleet_samples import IDENTITY, make_status

PROMPT = tuple(range(100))
TERMS = RequestTerms(tenant="a", cache_salt=b"salt-a")


def placement(layout: CacheLayout | None) -> Placement:
    return Placement(decode=make_status().ref, handoff_id="h", cache_layout=layout)


def taught(layout: CacheLayout | None, max_blocks: int = 64) -> PrefixNames:
    names = PrefixNames(max_blocks)
    names.learn("model", placement(layout))
    return names


def test_names_are_those_of_the_engines_blocks() -> None:
    engine = EngineCore(FakeRunner(FakeConfig(block_size=16, num_blocks=64)), SchedulerConfig())
    engine.add(make_request(PROMPT, cache_salt=TERMS.cache_salt, max_tokens=1))
    drain(engine)
    layout = CacheLayout(engine.info.identity, engine.info.geometry.block_size)
    names = taught(layout).names(TERMS, "model", PROMPT)
    assert len(names) == 6
    assert set(names) == set(short_hashes(engine.inspect().cached_blocks))


def test_salt_and_adapter_change_every_name() -> None:
    names = taught(CacheLayout(IDENTITY, 16))
    mine = set(names.names(TERMS, "model", PROMPT))
    other = dataclasses.replace(TERMS, cache_salt=b"salt-b")
    adapted = dataclasses.replace(TERMS, adapter=AdapterRef(digest="d" * 64))
    for terms in (other, adapted):
        assert not mine & set(names.names(terms, "model", PROMPT))


def test_no_names_before_the_router_asks_for_them_and_no_more_than_are_wanted() -> None:
    layout = CacheLayout(IDENTITY, 16)
    assert taught(None).names(TERMS, "model", PROMPT) == ()
    assert taught(layout).names(TERMS, "other model", PROMPT) == ()
    assert taught(layout, max_blocks=0).names(TERMS, "model", PROMPT) == ()
    assert len(taught(layout, max_blocks=2).names(TERMS, "model", PROMPT)) == 2
    assert len(taught(layout).names(TERMS, "model", PROMPT[:16])) == 0, "the last token is never cached"
    names = taught(layout)
    names.learn("model", placement(None))
    assert names.names(TERMS, "model", PROMPT) == ()


def test_a_session_key_depends_on_tenant_and_text_and_is_none_without_a_text() -> None:
    keys = {session_key(b"salt-a", "a", "x"), session_key(b"salt-a", "a", "y"), session_key(b"salt-b", "b", "x")}
    assert len(keys) == 3
    assert all(0 < key < 2**64 for key in keys)
    assert session_key(b"salt-a", "a", "") == 0
    assert session_key(b"salt-a", "a", "x") == session_key(b"salt-a", "a", "x")


LONG = tuple(range(1100))
SPEC = GenerationSpec(terms=TERMS, model_digest="model", prompt_ids=LONG, sampling=SamplingParams(), seed=0)
DATA_KEYS = {tenant: hashlib.sha256(tenant.encode()).digest() for tenant in ("a", "b")}


def gateway(most: int = 64) -> PrefixHashes:
    """Each gateway makes sub-keys by itself, of the tenants that have a data key."""

    def find(tenant_id: str, purpose: Purpose) -> bytes | None:
        return sub_key(DATA_KEYS[tenant_id], purpose) if tenant_id in DATA_KEYS else None

    return PrefixHashes(find, most)


def hashes(spec: GenerationSpec, **terms: Any) -> list[str]:
    return split_prefix_hashes(gateway().of(dataclasses.replace(spec, terms=dataclasses.replace(TERMS, **terms))))


def test_gateways_hash_beginnings_alike_of_one_tenant_and_never_of_two() -> None:
    fork = dataclasses.replace(SPEC, prompt_ids=(*LONG[:1024], *LONG[:1024]))
    assert len(hashes(SPEC)) == 2
    assert hashes(SPEC) == hashes(fork)[:2]
    assert len(set(hashes(fork)) | set(hashes(fork, tenant="b"))) == 8, "equal salts, and yet"
    others = (hashes(SPEC, cache_salt=b"of one key"), hashes(SPEC, adapter=AdapterRef(digest="d" * 64)))
    assert not set(hashes(SPEC)) & {one for other in others for one in other}


def test_no_hashes_of_short_prompts_and_without_a_data_key() -> None:
    assert gateway().of(dataclasses.replace(SPEC, prompt_ids=LONG[:511])) == ""
    assert hashes(SPEC, tenant="without") == []
    assert gateway(0).of(SPEC) == NO_PREFIX_HASHES.of(SPEC) == ""
    assert len(gateway(1).of(SPEC)) == 8
