"""Random schedules over two engines: ledger law, tokens by hand, none from uncommitted KV, no starvation."""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratos.common.errors import ContextLengthExceeded
from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner, fake_generate
from tests.support.examples import examples
from tests.support.fakes.audited_runner import audited_engine
from tests.support.worlds.engine_driver import assert_at_rest, make_request
from tests.support.worlds.engine_settings import scheduler_config

SOURCE_WEIGHT, TARGET_WEIGHT = 5, 2


BASELINES = [{}, {}, {"kv_cache": False}, {"batching": "static"}, {"scheduling": "prefill-first"}]


class EngineMachine(RuleBasedStateMachine):
    """Local requests and hand-offs come, run, are granted, committed and aborted in any order.

    Tokens are checked in hand-off runs without prefix sharing, where arithmetic knows which worker computed each
    position; with sharing on, only the ledgers are checked.
    """

    overlap = False

    @initialize(
        sharing=st.booleans(),
        budget=st.sampled_from([1, 5, 64]),
        num_blocks=st.sampled_from([10, 24]),
        mark=st.sampled_from([0.9, 1.0]),
        output=st.sampled_from([1, 256]),
        counts_budgets=st.booleans(),
        baseline=st.sampled_from(BASELINES),
        num_host_blocks=st.sampled_from([0, 3, 40]),
    )
    def start(self, sharing, budget, num_blocks, mark, output, counts_budgets, baseline, num_host_blocks):
        config = scheduler_config(
            max_num_batched_tokens=budget,
            max_num_seqs=5,
            prefix_cache=sharing,
            swap_costs=False,
            kv_watermark=mark,
            default_output_tokens=output,
            admission_counts_budgets=counts_budgets,
            **baseline,
        )
        self.max_seqs = min(config.max_num_seqs, budget)
        self.sharing, self.count, self.keeps_kv = sharing, 0, config.baseline.kv_cache
        self.source = EngineCore(
            FakeRunner(FakeConfig(worker_weight=SOURCE_WEIGHT, num_blocks=8, block_size=4, overlap=self.overlap)),
            config,
        )
        fake = FakeConfig(worker_weight=TARGET_WEIGHT, num_blocks=num_blocks, block_size=4, overlap=self.overlap)
        fake = dataclasses.replace(fake, num_host_blocks=num_host_blocks)
        self.target, self.target_runner = audited_engine(fake, config)
        self.requests, self.tokens, self.ended = {}, {}, {}
        self.legs, self.reserved = {}, {}

    def new_request(self, length, n, max_tokens):
        self.count += 1
        prompt = ((self.count * 3 + i) % 50 for i in range(length))
        return make_request(prompt, f"r{self.count}", n, max_tokens=max_tokens, arrival_s=float(self.count))

    @rule(length=st.integers(1, 14), n=st.integers(1, 3), max_tokens=st.integers(1, 9))
    def add(self, length, n, max_tokens):
        request = self.new_request(length, n, max_tokens)
        try:
            self.target.add(request)
        except ContextLengthExceeded:
            assert length + n * (max_tokens + 8) > 0.9 * self.target.status().blocks.total * 4
            return
        self.requests[request.key] = (request, 0)

    @rule(length=st.integers(2, 14), n=st.integers(1, 2))
    def intend(self, length, n):
        request = self.new_request(length, n, 5)
        leg = request.key.request_id
        self.source.add_prefill(PrefillJob(leg=leg, token_ids=request.prompt_ids[:-1]))
        self.legs[leg] = {"request": request, "ready": False, "done": 0}

    @rule()
    def step_source(self):
        for event in self.source.step().prefill_events:
            leg = self.legs.get(event.leg)
            if leg is None:
                continue
            leg["ready"] = True
            if event.kind is not PrefillEventKind.READY:
                leg["done"] = event.num_tokens

    @rule()
    def step_target(self):
        result = self.target.step()
        assert not result.errors
        for output in result.outputs:
            assert output.key in self.requests, "a token of a request that is not committed, or was aborted"
            got = self.tokens.setdefault((output.key, output.index), [])
            assert output.offset == len(got)
            got.extend(output.token_ids)
            if output.finish_reason:
                self.ended.setdefault(output.key, set()).add(output.index)
                if len(self.ended[output.key]) == len(self.requests[output.key][0].choices):
                    self.check_tokens(output.key)

    def check_tokens(self, key):
        request, num_handed = self.requests.pop(key)
        for choice in request.choices:
            got = self.tokens.get((key, choice.index), [])
            exhausted = len(got) < request.sampling.max_tokens
            status = self.target.status()
            is_recomputed = status.num_preemptions > status.host.num_swapped_out or not self.keeps_kv
            is_recomputed |= len(request.choices) > self.max_seqs  # the others came when the KV was gone
            is_recomputed |= choice.index > 0 and num_handed < len(request.prompt_ids) - 1  # or had no place to fork
            if not self.sharing and not (num_handed and is_recomputed):
                right = fake_generate(
                    request.prompt_ids,
                    len(got),
                    prefill_weight=SOURCE_WEIGHT,
                    decode_weight=TARGET_WEIGHT,
                    num_prefilled=num_handed,
                )
                assert got == right
            assert not exhausted or self.target.info.num_blocks * 4 <= len(request.prompt_ids) + len(got) + 4

    @precondition(lambda self: any(leg["ready"] for leg in self.legs.values()))
    @rule(data=st.data())
    def grant(self, data):
        name = data.draw(st.sampled_from([n for n, leg in self.legs.items() if leg["ready"]]))
        request = self.legs[name]["request"]
        if request.key in self.reserved:
            return
        reservation = self.target.reserve(request)
        if reservation is None:
            self.source.release_prefill(name)
            del self.legs[name]
            return
        self.reserved[request.key] = [name, reservation.num_skip_tokens, reservation.num_tokens]
        self.source.grant(name)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def transfer(self, data):
        key = data.draw(st.sampled_from(sorted(self.reserved)))
        name, sent, total = self.reserved[key]
        available = self.legs[name]["done"]
        if available > sent:
            self.target.scatter(
                key, KvRange(sent, available, 0, 1), self.source.gather(name, KvRange(sent, available, 0, 1))
            )
            self.reserved[key][1] = sent = available
        if sent == total:
            self.requests[key] = (self.legs.pop(name)["request"], total)
            self.target.commit(key)
            self.source.release_prefill(name)
            del self.reserved[key]

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def lose_source(self, data):
        key = data.draw(st.sampled_from(sorted(self.reserved)))
        name, sent, _ = self.reserved.pop(key)
        request = self.legs.pop(name)["request"]
        self.source.release_prefill(name)
        assert self.target.commit_part(key, sent)
        self.requests[key] = (request, sent)

    @precondition(lambda self: self.requests or self.reserved)
    @rule(data=st.data())
    def abort(self, data):
        key = data.draw(st.sampled_from(sorted([*self.requests, *self.reserved])))
        self.target.abort(key)
        self.requests.pop(key, None)
        if key in self.reserved:
            name = self.reserved.pop(key)[0]
            self.source.release_prefill(name)
            del self.legs[name]

    @invariant()
    def law(self):
        if hasattr(self, "target"):
            self.target.verify()
            self.source.verify()
            assert not self.target_runner.differences

    def teardown(self):
        if not hasattr(self, "target"):
            return
        for name in list(self.legs):
            self.source.release_prefill(name)
        for key in list(self.reserved):
            self.target.abort(key)
        for _ in range(3000):
            if not (self.target.has_work or self.source.has_work):
                break
            self.step_target()
            self.source.step()
        assert not self.requests, "some request never ended"
        for engine in (self.source, self.target):
            assert_at_rest(engine)


class OverlappingEngineMachine(EngineMachine):
    """The same with one step in flight between any two rules, executed as late as the contract allows."""

    overlap = True


TestEngine = EngineMachine.TestCase
TestOverlappingEngine = OverlappingEngineMachine.TestCase
TestEngine.settings = TestOverlappingEngine.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None
)
