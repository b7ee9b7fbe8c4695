"""The part that state machines over one engine share: requests crowd it, some are aborted, and all of it ends."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratos.core.requests.records import EngineRequest, RequestKey
from stratos.engine.core import EngineCore
from tests.support.worlds.engine_driver import MAX_STEPS, assert_at_rest, expected, make_request


class CrowdedMachine(RuleBasedStateMachine):
    """Tokens are checked at every step, the ledgers after every rule, and that nothing is held at the end.

    A subclass makes ``engine`` in its initializing rule, and has rules that call ``come`` and ``advance``.
    """

    engine: EngineCore | None = None
    overlap = False

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Any] = {}  # what ``expected`` must know of it
        self.requests: dict[RequestKey, EngineRequest] = {}
        self.tokens: dict[tuple[RequestKey, int], list[int]] = {}
        self.count = 0

    def come(self, kind: int, length: int, n: int, max_tokens: int) -> None:
        """A request arrives; prompts of one ``kind`` begin alike."""
        self.count += 1
        prompt = [100 * kind + i for i in range(length)]
        request = make_request(prompt, f"r{self.count}", n, max_tokens=max_tokens, arrival_s=float(self.count))
        self.engine.add(request)
        self.requests[request.key] = request

    def advance(self) -> None:
        """One step, in which nothing fails."""
        result = self.engine.step()
        assert not result.errors
        for output in result.outputs:
            got = self.tokens.setdefault((output.key, output.index), [])
            assert output.offset == len(got)
            got.extend(output.token_ids)
            request = self.requests[output.key]
            assert got == expected(request.prompt_ids, len(got), **self.model)
            assert not output.finish_reason or self.may_end(request, len(got))

    def may_end(self, request: EngineRequest, num_tokens: int) -> bool:
        """Whether a choice of ``num_tokens`` may have ended."""
        return num_tokens == request.sampling.max_tokens

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Any request that ever came is aborted."""
        self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @invariant()
    def law(self) -> None:
        """The ledgers are right."""
        if self.engine is not None:
            self.engine.verify()

    def teardown(self) -> None:
        """What is left ends."""
        if self.engine is None:
            return
        for _ in range(MAX_STEPS):
            if not self.engine.has_work:
                break
            self.advance()
        assert not self.engine.has_work, "the engine did not come to rest"
        assert_at_rest(self.engine)
