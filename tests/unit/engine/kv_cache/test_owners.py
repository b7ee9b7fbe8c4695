"""All blocks of a tenant can be dropped, in both tiers, and those of its neighbours stay."""

import pytest

from stratos.engine.kv_cache.owners import BlockOwners
from tests.support.worlds.engine_driver import CROWDED, assert_at_rest, drained_tokens, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

ALWAYS = scheduler_config(swap_costs=False, **CROWDED)
PROMPT = list(range(41))


def ask(engine, tenant, name, **fields):
    """Run a prompt of a tenant, which has a salt of its own; returns how many of its tokens were cached."""
    salt = tenant.encode()
    num_cached = engine.match(tuple(PROMPT), "", salt)
    engine.add(make_request(PROMPT, name, max_tokens=3, tenant=tenant, cache_salt=salt, **fields))
    assert drained_tokens(engine) == {(name, 0): expected(PROMPT, 3)}
    return num_cached


@pytest.mark.parametrize("num_blocks", [64, 12], ids=["device", "both tiers"])
def test_a_tenants_blocks_are_dropped_and_its_neighbours_stay(make_engine, num_blocks):
    engine = make_engine(ALWAYS, num_blocks=num_blocks, block_size=4, num_host_blocks=64)
    assert [ask(engine, tenant, f"{tenant}-1") for tenant in ("a", "b")] == [0, 0]
    assert ask(engine, "a", "a-2") > 0 or num_blocks == 12, "control: a probe with the same salt hits"
    assert (engine.status().host.slots.cached > 0) == (num_blocks == 12), "control: some are in host memory"
    assert engine.forget_tenant("a") > 0
    assert engine.match(tuple(PROMPT), "", b"a") == 0
    status = engine.status()
    left = status.blocks.cached + status.host.slots.cached
    assert engine.forget_tenant("b") <= left
    assert engine.status().blocks.free == num_blocks
    assert engine.status().host.slots.free == 64
    assert engine.forget_tenant("b") == 0
    assert_at_rest(engine)


def test_neighbours_still_hit(make_engine):
    engine = make_engine(ALWAYS, num_blocks=64, block_size=4)
    for tenant in ("a", "b"):
        ask(engine, tenant, f"{tenant}-1")
    assert engine.forget_tenant("a") == 10
    assert [ask(engine, "b", "b-2"), ask(engine, "a", "a-2")] == [40, 0]


def test_blocks_of_a_running_request_are_free_once_it_ends(make_engine):
    engine = make_engine(ALWAYS, num_blocks=64, block_size=4)
    engine.add(make_request(PROMPT, "a-1", max_tokens=8, tenant="a", cache_salt=b"a"))
    while engine.match(tuple(PROMPT), "", b"a") < 40:
        engine.step()
    engine.forget_tenant("a")
    assert engine.match(tuple(PROMPT), "", b"a") == 0
    tokens = []
    while engine.has_work:
        tokens += [token for output in engine.step().outputs for token in output.token_ids]
    assert tokens, "it goes on"
    engine.forget_tenant("a")
    assert engine.status().blocks.free == 64


def test_the_table_lets_go_of_what_no_tier_has():
    known: list[bytes] = []
    owners = BlockOwners(lambda block_hash: block_hash in known)
    for number in range(1000):
        known.append(b"%d" % number)
        del known[:-10]
        owners.note(known[-1], f"t{number % 2}")
        assert len(owners) <= 21
    assert sorted(owners.take("t0") + owners.take("t1"))[-1:] == [b"999"]
    assert len(owners) == 0


def crowd(engine, num_each=4):
    """Requests of two tenants in a pool that holds few of them: prompts that share blocks, answers that differ."""
    for number in range(num_each):
        for tenant in ("a", "b"):
            prompt, name = [*PROMPT[: 4 * (1 + number % 2)], number % 2], f"{tenant}{number}"
            engine.add(make_request(prompt, name, max_tokens=16, tenant=tenant, cache_salt=tenant.encode()))


def assert_all_go(engine, num_blocks, num_slots):
    for tenant in ("a", "b"):
        engine.forget_tenant(tenant)
    status = engine.status()
    assert (status.blocks.free, status.host.slots.free) == (num_blocks, num_slots)
    assert_at_rest(engine)


def test_what_preempted_requests_left_in_host_memory_goes_too(make_engine):
    engine = make_engine(ALWAYS, num_blocks=10, block_size=4, num_host_blocks=64)
    crowd(engine)
    while engine.has_work:
        engine.step()
    assert engine.status().host.num_swapped_out > 0, "control: some were swapped out"
    assert_all_go(engine, 10, 64)


@pytest.mark.parametrize("until", range(1, 6))
def test_a_tenant_that_goes_while_its_request_is_swapped_out_leaves_nothing(make_engine, until):
    engine = make_engine(ALWAYS, num_blocks=10, block_size=4, num_host_blocks=64)
    crowd(engine)
    while engine.status().host.num_swapped_out < until:
        engine.step()
    for tenant in ("a", "b"):
        engine.forget_tenant(tenant)
    while engine.has_work:
        engine.step()
    assert_all_go(engine, 10, 64)
