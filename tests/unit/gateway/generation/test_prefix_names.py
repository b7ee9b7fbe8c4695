"""Names of a prompt's blocks are those that the engine gives them, and tell nothing without the tenant's salt."""

from __future__ import annotations

import dataclasses

from stratos.core.adapter import AdapterRef
from stratos.core.cache_changes import CacheLayout, short_hashes
from stratos.core.placement import Placement
from stratos.core.requests.terms import RequestTerms
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos_gateway.generation.prompt_names import PrefixNames, session_key
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
