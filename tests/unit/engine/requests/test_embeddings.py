"""Embedding requests over the fake runner: every vector is checked against arithmetic done apart from the engine."""

from array import array

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, ContextLengthExceeded, Internal, Overloaded, QueueTimeout
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.records import RequestKey
from stratos.engine.fake.pooling import EMBEDDING_SIZE, fake_embedding
from stratos.engine.fake.runner import adapter_term, fake_generate, fake_kv
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import CROWDED, Run, drain, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms, pop_terms

LAST, MEAN = PoolingKind.LAST, PoolingKind.MEAN


def make_input(tokens, name="e", pooling=LAST, **fields):
    terms = make_terms(pop_terms(fields), tenant="t")
    return EmbedRequest(key=RequestKey(name, 0), token_ids=tuple(tokens), pooling=pooling, terms=terms, **fields)


def expected(tokens, pooling=LAST, weight=1, **fields):
    return pytest.approx(
        fake_embedding([fake_kv(weight, t, p) for p, t in enumerate(tokens)], pooling, **fields), abs=1e-6
    )


@pytest.mark.parametrize("pooling", [LAST, MEAN])
@pytest.mark.parametrize("budget", [1, 7, 16, 512])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_vectors_do_not_depend_on_chunks(make_engine, budget, length, pooling):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=budget))
    tokens = list(range(5, 5 + length))
    engine.add_embedding(make_input(tokens, pooling=pooling))
    run = drain(engine)
    assert run.vectors == {"e": expected(tokens, pooling)}
    assert sum(result.num_rows for result in run.results) == -(-length // budget)
    assert engine.status().blocks.allocated == 0


def test_many_inputs_share_steps_with_generations(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=64))
    inputs = {f"e{i}": list(range(i, 2 * i + 3)) for i in range(9)}
    for index, (name, tokens) in enumerate(inputs.items()):
        engine.add_embedding(make_input(tokens, name, MEAN if index % 2 else LAST))
    engine.add(make_request([1, 2, 3]))
    run = drain(engine)
    kinds = {name: MEAN if index % 2 else LAST for index, name in enumerate(inputs)}
    assert run.vectors == {name: expected(ids, kinds[name]) for name, ids in inputs.items()}
    assert run.tokens["r", 0] == fake_generate([1, 2, 3], 8, prefill_weight=1, decode_weight=1)
    assert max(result.num_rows for result in run.results) > 5


@pytest.mark.parametrize("budget", [5, 64])
def test_last_token_pooling_uses_the_prefix_cache_and_mean_pooling_does_not(make_engine, budget):
    engine, tokens = make_engine(SchedulerConfig(max_num_batched_tokens=budget)), list(range(40))
    for name, pooling in (("first", LAST), ("again", LAST), ("mean", MEAN)):
        engine.add_embedding(make_input(tokens, name, pooling))
        results = drain(engine).results
        (output,) = [e for result in results for e in result.embeddings]
        assert output.num_cached_tokens == {"first": 0, "again": 32, "mean": 0}[name]
        assert list(array("f", output.values)) == expected(tokens, pooling)


def test_prefixes_of_another_salt_or_adapter_are_not_used(make_engine):
    engine, tokens = make_engine(), list(range(40))
    engine.add_embedding(make_input(tokens, "a", cache_salt=b"one"))
    drain(engine)
    engine.add_embedding(make_input(tokens, "b", cache_salt=b"two"))
    engine.add_embedding(make_input(tokens, "c", cache_salt=b"one", adapter_digest="d"))
    run = drain(engine)
    assert [e.num_cached_tokens for r in run.results for e in r.embeddings] == [0, 0]
    assert run.vectors["c"] == expected(tokens, term=adapter_term("d"))
    assert run.vectors["c"] != run.vectors["b"]


@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_a_preempted_input_starts_its_vector_again(make_engine, pooling):
    """Generations that grow take the blocks of an input in the middle of its chunks."""
    config = scheduler_config(max_num_batched_tokens=6, prefix_cache=False, **CROWDED)
    engine = make_engine(config, num_blocks=6, block_size=4)
    for name in ("r1", "r2"):
        engine.add(make_request([1, 2, 3], name, max_tokens=9))
    run = Run(engine)
    run.step()
    engine.add_embedding(make_input(range(50, 66), pooling=pooling, arrival_s=1.0))
    run.drain()
    assert engine.status().num_preemptions > 0
    assert not run.errors
    assert run.vectors == {"e": expected(range(50, 66), pooling)}


def test_vectors_are_cut_before_they_are_scaled(make_engine):
    engine = make_engine()
    engine.add_embedding(make_input([1, 2, 3], "cut", num_dimensions=3))
    engine.add_embedding(make_input([1, 2, 3], "raw", normalizes=False, num_dimensions=5))
    vectors = drain(engine).vectors
    assert vectors["cut"] == expected([1, 2, 3], num_dimensions=3)
    assert sum(x * x for x in vectors["cut"]) == pytest.approx(1.0)
    assert vectors["raw"] == expected([1, 2, 3], normalizes=False, num_dimensions=5)


def test_one_poisoned_input_ends_alone(make_engine):
    engine = make_engine(poison_token=99)
    engine.add_embedding(make_input([1, 99], "bad"))
    engine.add_embedding(make_input([1, 98], "good"))
    run = drain(engine)
    assert isinstance(run.errors["bad"], Internal)
    assert run.vectors == {"good": expected([1, 98])}
    assert engine.status().blocks.allocated == 0


def test_abort_frees_everything_in_any_phase(make_engine):
    for num_steps in range(5):
        engine = make_engine(SchedulerConfig(max_num_batched_tokens=8))
        engine.add_embedding(make_input(range(40)))
        for _ in range(num_steps):
            engine.step()
        engine.abort(RequestKey("e", 0))
        vectors = drain(engine).vectors
        assert not vectors
        assert engine.status().blocks.allocated == 0
        engine.add_embedding(make_input(range(40)))  # the key may be used again
        assert drain(engine).vectors == {"e": expected(range(40))}


def test_a_late_input_expires_while_it_waits(make_engine):
    clock = FakeClock()
    engine = make_engine(clock=clock)
    engine.add_embedding(make_input([1], deadline_s=clock.now() + 1))
    clock.advance(2)
    errors = drain(engine).errors
    assert isinstance(errors["e"], QueueTimeout)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"tokens": []}, BadRequest),
        ({"tokens": range(200)}, ContextLengthExceeded),
        ({"tokens": [1], "num_dimensions": EMBEDDING_SIZE + 1}, BadRequest),
        ({"tokens": [1], "num_dimensions": 0}, BadRequest),
        ({"tokens": [1], "name": "here"}, BadRequest),
    ],
)
def test_what_cannot_be_embedded_is_refused(make_engine, fields, error):
    engine = make_engine(num_blocks=8)
    engine.add_embedding(make_input([1], "here"))
    with pytest.raises(error):
        engine.add_embedding(make_input(**fields))


def test_a_full_queue_refuses_and_the_whole_context_may_be_embedded(make_engine):
    engine = make_engine(SchedulerConfig(max_num_waiting=1), max_model_len=64)
    engine.add_embedding(make_input(range(64)))
    with pytest.raises(Overloaded):
        engine.add_embedding(make_input([1], "more"))
    assert drain(engine).vectors == {"e": expected(range(64))}


def test_a_model_without_an_output_layer_refuses_to_generate(make_engine):
    engine = make_engine(can_generate=False)
    with pytest.raises(BadRequest, match="only embeds"):
        engine.add(make_request([1]))
    with pytest.raises(BadRequest, match="only embeds"):
        engine.reserve(make_request([1]))
