"""A choice's text gets the same verdict, and the same part of it is shown, in whatever pieces it comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from stratos.common.errors import ContentCheckDown, ContentRefused
from stratos.core.tenancy.content import ContentPolicy
from stratos.text.filtering.rules import Rules
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.policies.choice_screen import FILTERED, ChoiceScreen
from stratos_gateway.policies.classifier import NoVerdict
from stratos_gateway.policies.screen import Screen

REPLACEMENT = "[cut]"
POLICY = ContentPolicy(
    words={"w": ("bad",)}, patterns={"p": "[0-9]{3}"}, window_chars=16, classifier_threshold=0.5,
    classifier_block_chars=32, replacement=REPLACEMENT,
)  # fmt: skip
METRICS = GatewayMetrics(CollectorRegistry())


@dataclass
class FakeClassifier:
    """Scores by a function of the text; ``None`` gives no verdict."""

    score_of: Callable[[str], float | None]
    texts: list[str] = field(default_factory=list)

    async def score(self, text: str) -> float:
        self.texts.append(text)
        score = self.score_of(text)
        if score is None:
            raise NoVerdict("scripted")
        return score


def screen_with(score_of: Callable[[str], float | None], policy: ContentPolicy = POLICY) -> Screen:
    return Screen(
        tenant="t", policy=policy, rules=Rules.of(policy), classifier=FakeClassifier(score_of), metrics=METRICS
    )


def pieces_of(text: str, cuts: list[int]) -> list[ChoiceChunk]:
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts} - {0, len(text)}), len(text)]
    texts = [text[begin:end] for begin, end in pairwise(places)]
    return [
        ChoiceChunk(
            index=0, text=piece, token_ids=[place], entries=[], is_first=place == 0,
            finish_reason="stop" if place == len(texts) - 1 else None,
        )
        for place, piece in enumerate(texts)
    ]  # fmt: skip


async def shown_of(screen: Screen, chunks: list[ChoiceChunk]) -> tuple[str, str | None, list[int]]:
    choice, text, reason, ids, num_tokens = ChoiceScreen(screen), "", None, [], 0
    for chunk in chunks:
        if (shown := await choice.feed(chunk)) is not None:
            assert reason is None, "nothing comes after the end"
            text, reason = text + shown.text, shown.finish_reason
            ids += shown.token_ids
            num_tokens += len(shown.token_ids) + shown.num_withheld
    assert reason == FILTERED or num_tokens == len(chunks), "what is billed as delivered"
    return text, reason, ids


def is_foul(text: str) -> float:
    return 0.9 if "zzz" in text else 0.1


@given(
    st.lists(st.sampled_from([*"abz12 .", " bad ", "123", "zzz"]), max_size=80).map("".join),
    st.lists(st.integers(0, 999)),
)
def test_pieces_do_not_matter(text: str, cuts: list[int]) -> None:
    whole, wrong = pieces_of(text, []), screen_with(is_foul)
    expected = asyncio.run(shown_of(wrong, whole))
    got = asyncio.run(shown_of(screen_with(is_foul), pieces_of(text, cuts)))
    assert got[:2] == expected[:2]
    if expected[1] == FILTERED:
        assert expected[0].endswith(REPLACEMENT)
        assert got[2] == [], "ids of tokens would tell what was held back"
    else:
        assert got == (text, "stop", [*range(len(pieces_of(text, cuts)))])


async def test_text_is_classified_before_it_is_shown_and_with_what_came_before() -> None:
    screen = screen_with(lambda text: 0.0)
    text = "".join(f"{n:02d}-" for n in range(40))
    assert (await shown_of(screen, pieces_of(text, [7, 50, 51, 90])))[0] == text
    assert isinstance(screen.classifier, FakeClassifier)
    blocks = [text[begin : begin + 32] for begin in range(0, len(text), 32)]
    assert screen.classifier.texts == [a + b for a, b in zip(["", *blocks], blocks, strict=False)]


async def test_without_a_verdict_the_policy_says_what_follows() -> None:
    chunks = pieces_of("x" * 100, [10, 40])
    with pytest.raises(ContentCheckDown):
        await shown_of(screen_with(lambda text: None), chunks)
    opened = ContentPolicy(classifier_threshold=0.5, fails_open=True)
    assert (await shown_of(screen_with(lambda text: None, opened), chunks))[0] == "x" * 100


async def test_long_texts_are_looked_through_beside_the_event_loop() -> None:
    """A policy of many patterns may take a second for a body of 2 MB."""

    class Noted:
        threads: ClassVar[list[int]] = []

        def first_hit(self, text: str) -> None:
            self.threads.append(threading.get_ident())

    screen = replace(screen_with(lambda text: 0.0), rules=cast("Any", Noted()))
    await screen.check_input(["short", "x" * 1000], "prompt")
    assert set(Noted.threads) == {threading.get_ident()}
    Noted.threads.clear()
    await screen.check_input(["short", "x" * 100_000], "prompt")
    assert len(Noted.threads) == 2
    assert threading.get_ident() not in Noted.threads


async def test_a_hit_in_a_short_or_a_long_text_is_refused() -> None:
    for text in ("fine bad", "fine " * 10_000 + "bad"):
        with pytest.raises(ContentRefused):
            await screen_with(lambda text: 0.0).check_input(["fine", text], "prompt")
    await screen_with(lambda text: 0.0).check_input(["fine", "fine " * 10_000], "prompt")
