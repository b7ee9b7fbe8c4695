"""A grammar that takes long to compile holds up no other request's tokens."""

from __future__ import annotations

import asyncio

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.worker.engine_client.thread import ThreadEngine
from tests.support.paths import BASE_MODEL
from tests.support.worlds.core_driver import make_core, make_request

SLOW = "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(60)) + 'R60: "a"\n'
"""Refused, after most of a second."""


async def test_steps_go_on_while_a_grammar_compiles() -> None:
    engine = ThreadEngine(make_core(BASE_MODEL, kv_pool_bytes=8 << 20))
    await engine.start()
    try:
        await engine.prepare_grammar(GrammarSpec(GrammarKind.REGEX, "a"))  # loads the tokenizer
        await engine.add(make_request([5, 6, 7], max_tokens=1500, ignore_eos=True))
        compiling = asyncio.create_task(engine.prepare_grammar(GrammarSpec(GrammarKind.LARK, SLOW)))
        steps, turns = {engine.status().step}, 0
        while not compiling.done():
            await asyncio.sleep(0.001)
            steps.add(engine.status().step)
            turns += 1
        with pytest.raises(BadRequest, match="too big"):
            compiling.result()
        assert len(steps) > 3, "the step loop waited"
        assert turns > 20, "the event loop waited"
    finally:
        await engine.close()
