"""Chunks that are sent from where they come, while the task of the answer only waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stratos.common.errors import Draining
from stratos.core.generation import ChoiceDelta
from stratos.core.requests.records import FinishReason
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import DEFAULT_TERMS
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.fanout import Fanout
from stratos_gateway.openai.chunks import ChoiceChunk
from tests.support.fakes.gateway_fakes import FakeRouter, FakeSessions, make_platform
from tests.support.reference.shipped_model import shipped_tokenizer

SPEC = GenerationSpec(terms=DEFAULT_TERMS, model_digest="d", prompt_ids=(5, 6), sampling=SamplingParams(), seed=1)


class Sender:
    """Sends, unless its client is behind."""

    def __init__(self) -> None:
        self.is_behind = False
        self.sent: list[list[int]] = []

    def send_now(self, take: Callable[[], list[ChoiceChunk]]) -> bool:
        if not self.is_behind:
            self.sent.append([token for chunk in take() for token in chunk.token_ids])
        return not self.is_behind


class Answer:
    """Two prompts whose tokens the test makes, and the task that waits for them."""

    def __init__(self) -> None:
        self.output = Fanout(
            [SPEC, SPEC], 1, ((), False), shipped_tokenizer(), make_platform(FakeRouter(), FakeSessions([]))
        )
        self.sender = Sender()
        self.output.send_now = self.sender.send_now

    async def wait_for_news(self) -> asyncio.Task[list[ChoiceChunk]]:
        waiting = asyncio.create_task(self.output.news())
        await asyncio.sleep(0)
        return waiting

    def token(self, token_id: int, prompt: int = 0, reason: FinishReason | None = None) -> None:
        transcript = self.output.generations[prompt].transcript
        offset = len(transcript.choices[0].ids)
        transcript.accept(ChoiceDelta(index=0, offset=offset, token_ids=[token_id], finish_reason=reason), 0.0)
        transcript.publish()


async def test_while_news_is_awaited_it_is_sent_and_else_it_waits() -> None:
    answer = Answer()
    answer.token(7)
    assert answer.sender.sent == [], "the task may be in the middle of a write"
    assert [chunk.token_ids for chunk in await answer.output.news()] == [[7]]
    waiting = await answer.wait_for_news()
    answer.token(8)
    answer.token(9, prompt=1)
    assert (answer.sender.sent, waiting.done()) == ([[8], [9]], False)
    waiting.cancel()


async def test_what_a_client_that_is_behind_did_not_get_is_brought_by_news_and_nothing_overtakes_it() -> None:
    answer = Answer()
    waiting = await answer.wait_for_news()
    answer.sender.is_behind = True
    answer.token(7)
    answer.sender.is_behind = False
    answer.token(8)
    assert answer.sender.sent == []
    assert [chunk.token_ids for chunk in await waiting] == [[7, 8]]


async def test_ends_and_failures_wake_the_task() -> None:
    answer = Answer()
    waiting = await answer.wait_for_news()
    answer.token(6)
    answer.token(7, reason=FinishReason.LENGTH)
    assert answer.sender.sent == [[6]], "the last one leaves with the end of the answer"
    answer.output.fail(Draining("the gateway leaves"))
    answer.token(8, prompt=1)
    assert answer.sender.sent == [[6]], "it is the task's, which has been woken"
    assert [chunk.token_ids for chunk in await waiting] == [[7], [8]]
    with pytest.raises(Draining):
        await answer.output.news()
    assert not answer.output.is_ended, "the second prompt goes on"
    answer.token(9, prompt=1, reason=FinishReason.LENGTH)
    assert answer.output.is_ended, "so the sender keeps what it has for the end, which comes with the generations'"
    ended = Answer()
    waiting = await ended.wait_for_news()
    ended.output.generations[0].is_ended = True
    ended.token(7, prompt=1)
    assert [chunk.token_ids for chunk in await waiting] == [[7]]


class TokenSender(Sender):
    """Sends single tokens of the only choice by themselves, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[tuple[int, str]] = []

    def send_token(self, token_id: int, text: str) -> bool:
        if not self.is_behind:
            self.tokens.append((token_id, text))
        return not self.is_behind


def one_choice(stop: tuple[str, ...] = ()) -> tuple[Fanout, TokenSender]:
    output = Fanout([SPEC], 1, (stop, False), shipped_tokenizer(), make_platform(FakeRouter(), FakeSessions([])))
    sender = TokenSender()
    output.send_now, output.send_token = sender.send_now, sender.send_token
    return output, sender


def hand(output: Fanout, token_id: int, offset: int | None = None) -> bool:
    """Hand a token over as an attempt does: whether it went the short way."""
    transcript = output.generations[0].transcript
    offset = len(transcript.choices[0].ids) if offset is None else offset
    if transcript.pass_on(offset, token_id, 1.0):
        return True
    transcript.accept_token(offset, token_id, 1.0)
    transcript.publish()
    return False


async def test_tokens_go_the_short_way_once_the_first_was_sent_and_are_journalled_all_the_same() -> None:
    output, sender = one_choice()
    waiting = asyncio.create_task(output.news())
    await asyncio.sleep(0)
    words = [shipped_tokenizer().encode(text)[0] for text in (" the", " order", " of")]
    assert [hand(output, token_id) for token_id in words] == [False, True, True]
    assert (sender.sent, sender.tokens) == ([words[:1]], [(words[1], " order"), (words[2], " of")])
    choice = output.generations[0].transcript.choices[0]
    assert (choice.ids, choice.num_untaken, choice.num_delivered) == (words, 0, 2)
    assert output.take() == []
    times = output.generations[0].transcript.times(0.0)
    assert times.itls.num == 2
    waiting.cancel()


async def test_what_is_not_plain_goes_the_long_way_and_the_short_one_is_open_again_behind_it() -> None:
    """A part of a character is held back, a token comes again, a client is behind."""
    output, sender = one_choice()
    waiting = asyncio.create_task(output.news())
    await asyncio.sleep(0)
    tokenizer = shipped_tokenizer()
    word, [first, *rest] = tokenizer.encode(" the")[0], tokenizer.encode("\U0001f9a9")
    assert rest, "its bytes are several tokens"
    assert [hand(output, token_id) for token_id in (word, word, first, *rest)] == [
        False,
        True,
        *[False] * (1 + len(rest)),
    ]
    assert [hand(output, word), hand(output, word, offset=1)] == [True, False]
    sender.is_behind = True
    assert [hand(output, word), hand(output, word)] == [False, False]
    sender.is_behind = False
    assert not hand(output, word), "it would overtake what waits"
    [chunk] = await waiting
    assert chunk.text == " the the the"
    choice = output.generations[0].transcript.choices[0]
    text = "".join(text for _, text in sender.tokens)
    assert (len(choice.ids), text) == (7 + len(rest), " the the")


async def test_stop_strings_are_looked_for_in_chunks() -> None:
    output, sender = one_choice(stop=("never",))
    waiting = asyncio.create_task(output.news())
    await asyncio.sleep(0)
    word = shipped_tokenizer().encode(" the")[0]
    assert [hand(output, word) for _ in range(3)] == [False] * 3
    assert sender.tokens == []
    waiting.cancel()


async def test_the_last_end_wakes_the_task_once_with_all_that_came() -> None:
    output, sender = one_choice()
    waiting = asyncio.create_task(output.news())
    await asyncio.sleep(0)
    word = shipped_tokenizer().encode(" the")[0]
    generation = output.generations[0]
    generation.transcript.accept(
        ChoiceDelta(index=0, offset=0, token_ids=[word], finish_reason=FinishReason.LENGTH), 0.0
    )
    generation.transcript.publish()
    await asyncio.sleep(0)
    assert (output.is_ended, waiting.done(), sender.sent) == (True, False, [])
    generation.is_ended = True  # as ``run`` says, at once
    generation.transcript.publish()
    assert [chunk.token_ids for chunk in await waiting] == [[word]]
    assert await output.news() == []


class WatchedFanout(Fanout):
    """Counts how often its task looks whether all is over."""

    num_looks = 0

    @property
    def _is_over(self) -> bool:
        self.num_looks += 1
        return super()._is_over


async def test_an_answer_that_is_wanted_whole_is_woken_by_ends_alone() -> None:
    platform = make_platform(FakeRouter(), FakeSessions([]))
    output = WatchedFanout([SPEC, SPEC], 1, ((), False), shipped_tokenizer(), platform)
    waiting = asyncio.create_task(output.finish())
    await asyncio.sleep(0)
    first, second = output.generations
    num_looks = output.num_looks
    for number, generation in enumerate((first, second)):
        generation.transcript.accept(ChoiceDelta(index=0, offset=0, token_ids=[7 + number]), 0.0)
        generation.transcript.publish()
    await asyncio.sleep(0)
    assert output.num_looks == num_looks, "tokens wake it in vain"
    first.is_ended = True
    first.transcript.publish()
    await asyncio.sleep(0)
    assert (output.num_looks > num_looks, waiting.done()) == (True, False), "the first one may have failed"
    second.is_ended = True
    second.transcript.publish()
    assert [chunk.token_ids for chunk in await waiting] == [[7], [8]]
    assert output.usage is output.usage, "of the end it is made once"
