"""Traces of clients: sessions of one or more turns, whose prompts share prefixes in different ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from stratos.sim.runner import VOCAB_SIZE, output_token


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    prompt_ids: tuple[int, ...]
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class ClientSession:
    """Requests of one client, one after the other."""

    key: int
    """Stands for what the client sends with each of them, such as ``prompt_cache_key``; 0 for nothing."""
    turns: tuple[Turn, ...]


def shared_prefixes(
    seed: int, *, num_prefixes: int = 64, num_sessions: int = 768, prefix_tokens: int = 2048
) -> list[ClientSession]:
    """Questions about long documents: each prompt is one of a few prefixes and a question of its own."""
    rng = Random(seed)
    prefixes = [_tokens(rng, prefix_tokens) for _ in range(num_prefixes)]
    return [
        ClientSession(0, (Turn(rng.choice(prefixes) + _tokens(rng, rng.randint(64, 192)), rng.randint(16, 64)),))
        for _ in range(num_sessions)
    ]


def mixed(seed: int, *, num_sessions: int = 320) -> list[ClientSession]:
    """Half chats of several turns below a few system prompts, a quarter documents, a quarter prompts of all lengths."""
    rng = Random(seed)
    systems = [_tokens(rng, 256) for _ in range(8)]
    documents = [_tokens(rng, 1536) for _ in range(48)]
    sessions = []
    for number in range(1, num_sessions + 1):
        kind = rng.random()
        if kind < 0.5:
            sessions.append(ClientSession(number, tuple(_chat(rng, rng.choice(systems), rng.randint(2, 6)))))
        elif kind < 0.75:
            prompt = rng.choice(documents) + _tokens(rng, rng.randint(32, 128))
            sessions.append(ClientSession(0, (Turn(prompt, rng.randint(16, 64)),)))
        else:
            length = rng.randint(3000, 6000) if rng.random() < 0.1 else rng.randint(64, 1024)
            sessions.append(ClientSession(0, (Turn(_tokens(rng, length), rng.randint(16, 96)),)))
    return sessions


def _chat(rng: Random, system: tuple[int, ...], num_turns: int) -> Iterator[Turn]:
    history = system
    for _ in range(num_turns):
        prompt, num_output = history + _tokens(rng, rng.randint(32, 256)), rng.randint(16, 96)
        yield Turn(prompt, num_output)
        answer = (output_token(position) for position in range(len(prompt), len(prompt) + num_output))
        history = (*prompt, *answer)


def _tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB_SIZE) for _ in range(count))


TRACES = {"shared-prefix": shared_prefixes, "mixed": mixed}
"""By the name that scripts and tables use."""
