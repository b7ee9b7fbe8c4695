"""The limits table and the one validator of generation parameters, for every ingress (HTTP and gRPC).

A limit is a row: name, minimum, maximum, kind.  The checks raise ``BadRequest`` with ``param`` set; a route that
accepts a new parameter adds a row here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratos.common.errors import BadRequest, ContextLengthExceeded


@dataclass(frozen=True, slots=True)
class Limit:
    """Inclusive range of one numeric parameter."""

    minimum: float
    maximum: float
    is_integer: bool = False
    excludes_minimum: bool = False


LIMITS: Mapping[str, Limit] = {
    "temperature": Limit(0.0, 2.0),
    "top_p": Limit(0.0, 1.0, excludes_minimum=True),
    "top_k": Limit(0, 2**20, is_integer=True),
    "min_p": Limit(0.0, 1.0),
    "repetition_penalty": Limit(0.01, 2.0),
    "frequency_penalty": Limit(-2.0, 2.0),
    "presence_penalty": Limit(-2.0, 2.0),
    "max_tokens": Limit(1, 2**20, is_integer=True),
    "min_tokens": Limit(0, 2**20, is_integer=True),
    "n": Limit(1, 16, is_integer=True),
    "num_logprobs": Limit(0, 20, is_integer=True),
    "num_prompt_logprobs": Limit(0, 20, is_integer=True),
    "seed": Limit(-(2**63), 2**63 - 1, is_integer=True),
    "dimensions": Limit(1, 2**20, is_integer=True),
    "truncate_prompt_tokens": Limit(-1, 2**20, is_integer=True),
}
MAX_PROMPT_LOGPROBS = 2**18
"""Log probabilities of prompt tokens in one answer: prompt tokens times (most likely ones + 1)."""
MAX_STOP_STRINGS = 4
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BAD_TOKEN_IDS = 256
MAX_BAD_WORDS = 32
MAX_BAD_WORD_CHARS = 64
MAX_BAD_SEQUENCES = MAX_BAD_TOKEN_IDS + 2 * MAX_BAD_WORDS
"""Single tokens, and each word as the beginning of a text and after a blank."""
MAX_LOGIT_BIAS = 300
MAX_SHOWN_KEY = 40
MAX_SHOWN_KEYS = 4
_MAX_EXACT_FLOAT = 2**53
"""Beyond it a number that JSON had as a float is one of several integers."""
MAX_TOKEN_ID_DIGITS = 10
DEADLINE_MS = Limit(1, 24 * 3600 * 1000, is_integer=True)
MAX_DEADLINE_DIGITS = 12
LOGIT_BIAS_LIMIT = Limit(-100.0, 100.0)
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_MESSAGES = 1024
MAX_CONTENT_PARTS = 256
MAX_ALL_CONTENT_PARTS = 4096
"""Parts of all messages of one request."""
MAX_METADATA_KEYS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512
MAX_SESSION_CHARS = 512
"""Longest name of a client's session; what follows is not read."""
_SLICE_IDS = 16_384
"""Token ids that are checked in one go, in which no other thread runs."""
MAX_PROMPTS = 64
"""Prompts of one completions request."""
MAX_CHOICES = 128
"""Choices of one request, over all its prompts."""
MAX_EMBEDDING_INPUTS = 2048
"""Inputs of one embeddings request."""
MAX_EMBEDDING_TOKENS = 300_000
"""Tokens of one embeddings request, over all its inputs."""
MAX_COUNTED_TOKENS = 200_000
"""Tokens of a text or conversation that is counted, which may be longer than any prompt."""
MAX_MODEL_NAME_CHARS = 256
NUM_PRIORITY_CLASSES = 4
"""Priority classes are 0 (most urgent) to 3, for tenants, the router's queues and the engine alike."""
DEFAULT_PRIORITY_CLASS = NUM_PRIORITY_CLASSES // 2
"""In the middle, so that there is room above and below it."""
BATCH_CLASS = NUM_PRIORITY_CLASSES - 1
"""The last one: it never ages above the default class."""


def check_number(name: str, value: object, param: str | None = None) -> float | int:
    """Check ``value`` against the row ``name``; returns it as int or float.

    Raises:
        BadRequest: not a number, not finite, not an integer where one is due, or out of range.
    """
    limit, param = LIMITS[name], param or name
    return _check(limit, value, param)


def _plain(bound: float) -> str:
    """A bound as a person writes it: 1048576, not 1.04858e+06."""
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _check(limit: Limit, value: object, param: str, shown: str = "") -> float | int:
    """``shown`` is the value's name in messages, where it is not that of the parameter."""
    shown = shown or param
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{shown} must be a number", param=param)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{shown} must be finite", param=param)
    is_rounded = False
    if limit.is_integer:
        if isinstance(value, float) and not value.is_integer():
            raise BadRequest(f"{shown} must be an integer", param=param)
        is_rounded = isinstance(value, float) and abs(value) >= _MAX_EXACT_FLOAT
        value = int(value)
    too_low = value <= limit.minimum if limit.excludes_minimum else value < limit.minimum
    if too_low or value > limit.maximum:
        bracket = "(" if limit.excludes_minimum else "["
        raise BadRequest(f"{shown} must be in {bracket}{_plain(limit.minimum)}, {_plain(limit.maximum)}]", param=param)
    if is_rounded:
        raise BadRequest(f"{shown} is not exact: it must be an integer of 64 bits, without an exponent", param=param)
    return value


def check_stop(stop: object, param: str = "stop") -> tuple[str, ...]:
    """Normalise the OpenAI ``stop`` parameter: null, one string or a list of strings."""
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if isinstance(strings, list) and len(strings) > MAX_STOP_STRINGS:
        raise BadRequest(f"{param} may hold at most {MAX_STOP_STRINGS} strings", param=param)
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise BadRequest(f"{param} must be a non-empty string or a list of them", param=param)
    if any(len(s) > MAX_STOP_STRING_CHARS for s in strings):
        raise BadRequest(f"a stop string may have at most {MAX_STOP_STRING_CHARS} characters", param=param)
    return tuple(strings)


def check_token_ids(ids: Sequence[object], vocab_size: int, param: str) -> tuple[int, ...]:
    """Check that every id is an integer in [0, vocab_size); how many there may be is checked before."""
    for begin in range(0, len(ids), _SLICE_IDS):
        part = ids[begin : begin + _SLICE_IDS]
        if set(map(type, part)) != {int} or min(part) < 0 or max(part) >= vocab_size:  # type: ignore[type-var,operator]
            strange = next((n for n in part if type(n) is int and not 0 <= n < vocab_size), None)
            is_shown = strange is not None and strange.bit_length() <= 64
            told = f", and {strange} is out of vocabulary" if is_shown else ""
            raise BadRequest(f"{param} must hold token ids in [0, {vocab_size}){told}", param=param)
    return tuple(ids)  # type: ignore[arg-type]


def check_metadata(value: object) -> dict[str, str]:
    """Check the OpenAI ``metadata`` parameter: a few texts."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_METADATA_KEYS:
        raise BadRequest(f"metadata must be an object of at most {MAX_METADATA_KEYS} texts", param="metadata")
    for key, text in value.items():
        if not isinstance(text, str) or len(key) > MAX_METADATA_KEY_CHARS or len(text) > MAX_METADATA_CHARS:
            most = f"keys of at most {MAX_METADATA_KEY_CHARS} characters and texts of at most {MAX_METADATA_CHARS}"
            raise BadRequest(f"metadata must hold {most}", param="metadata")
    return value


def check_stop_token_ids(ids: object, vocab_size: int) -> tuple[int, ...]:
    """Check the ``stop_token_ids`` parameter."""
    if ids is None:
        return ()
    if not isinstance(ids, list) or len(ids) > MAX_STOP_TOKEN_IDS:
        raise BadRequest(f"stop_token_ids must be a list of at most {MAX_STOP_TOKEN_IDS}", param="stop_token_ids")
    return check_token_ids(ids, vocab_size, "stop_token_ids")


def check_token_id_list(ids: object, vocab_size: int, param: str, most: int) -> tuple[int, ...]:
    """Check an optional parameter that is a non-empty list of at most ``most`` token ids."""
    if ids is None:
        return ()
    if not isinstance(ids, list) or not 0 < len(ids) <= most:
        raise BadRequest(f"{param} must be a list of 1 to {most} token ids", param=param)
    return check_token_ids(ids, vocab_size, param)


def check_bad_words(words: object) -> tuple[str, ...]:
    """Check the ``bad_words`` parameter: words that must not be in the output."""
    if words is None:
        return ()
    if not isinstance(words, list) or len(words) > MAX_BAD_WORDS:
        raise BadRequest(f"bad_words must be a list of at most {MAX_BAD_WORDS} strings", param="bad_words")
    for word in words:
        if not isinstance(word, str) or not word.strip() or len(word) > MAX_BAD_WORD_CHARS:
            message = f"a bad word must be a string of 1 to {MAX_BAD_WORD_CHARS} characters that are not all blank"
            raise BadRequest(message, param="bad_words")
    return tuple(words)


def check_bad_sequences(sequences: Sequence[Sequence[object]], vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Check token sequences that must not be in the output."""
    if len(sequences) > MAX_BAD_SEQUENCES:
        raise BadRequest(f"there may be at most {MAX_BAD_SEQUENCES} bad sequences", param="bad_words")
    if not all(sequences):
        raise BadRequest("a bad sequence must not be empty", param="bad_words")
    return tuple(check_token_ids(sequence, vocab_size, "bad_words") for sequence in sequences)


def check_logit_bias(bias: object, vocab_size: int) -> dict[int, float]:
    """Check the OpenAI ``logit_bias`` parameter: a map from token id (as text or number) to a bias."""
    if bias is None:
        return {}
    if not isinstance(bias, Mapping) or len(bias) > MAX_LOGIT_BIAS:
        raise BadRequest(f"logit_bias must be an object of at most {MAX_LOGIT_BIAS} entries", param="logit_bias")
    names = {str(key): value for key, value in bias.items()}
    if strange := [name for name in names if not _is_token_id(name, vocab_size)]:
        shown = ", ".join(f"{name[:MAX_SHOWN_KEY]!a}" for name in strange[:MAX_SHOWN_KEYS])
        text = f"logit_bias has the key {shown}, which is no token id in [0, {vocab_size})"
        raise BadRequest(text, param="logit_bias")
    checks = (
        (int(name), _check(LOGIT_BIAS_LIMIT, value, "logit_bias", f"logit_bias[{name!r}]"))
        for name, value in names.items()
    )
    return {token_id: float(value) for token_id, value in checks}


def _is_token_id(name: str, vocab_size: int) -> bool:
    return len(name) <= MAX_TOKEN_ID_DIGITS and name.isascii() and name.isdigit() and int(name) < vocab_size


def check_num_choices(num_prompts: int, num_choices_each: int, param: str = "n") -> None:
    """Bound the work of one request over all its prompts."""
    if num_prompts > MAX_PROMPTS:
        raise BadRequest(f"a request may hold at most {MAX_PROMPTS} prompts", param="prompt")
    if num_prompts * num_choices_each > MAX_CHOICES:
        raise BadRequest(f"a request may ask for at most {MAX_CHOICES} choices over all its prompts", param=param)


def check_num_inputs(num_inputs: int) -> None:
    """Bound the inputs of one embeddings request."""
    if num_inputs > MAX_EMBEDDING_INPUTS:
        raise BadRequest(f"a request may hold at most {MAX_EMBEDDING_INPUTS} inputs", param="input")


def check_input_lengths(lengths: Sequence[int], max_input_tokens: int, max_model_len: int) -> None:
    """Refuse an input without tokens, one over the input limit or the context, and too many tokens together."""
    most = min(max_input_tokens, max_model_len)
    for index, length in enumerate(lengths):
        if length == 0:
            raise BadRequest(f"input {index} is empty", param="input")
        if length > most:
            raise ContextLengthExceeded(f"input {index} has {length} tokens, the limit is {most}", param="input")
    if sum(lengths) > MAX_EMBEDDING_TOKENS:
        text = f"the inputs have {sum(lengths)} tokens together, the limit is {MAX_EMBEDDING_TOKENS}"
        raise ContextLengthExceeded(text, param="input")


def check_prompt_logprobs(num_prompt_tokens: int, num_prompt_logprobs: int | None, param: str) -> None:
    """Bound the size of an answer with log probabilities of the prompt."""
    if num_prompt_logprobs is not None and num_prompt_tokens * (num_prompt_logprobs + 1) > MAX_PROMPT_LOGPROBS:
        most = MAX_PROMPT_LOGPROBS // num_prompt_tokens - 1
        raise BadRequest(f"a prompt of {num_prompt_tokens} tokens may ask for at most {most} of each", param=param)


def check_model_name(name: object) -> str:
    """Check the ``model`` parameter."""
    if not isinstance(name, str) or not name:
        raise BadRequest("model must be a non-empty string", param="model")
    if len(name) > MAX_MODEL_NAME_CHARS:
        raise BadRequest(f"model may have at most {MAX_MODEL_NAME_CHARS} characters", param="model")
    return name


def check_prompt_length(num_prompt_tokens: int, max_input_tokens: int, max_model_len: int, param: str) -> None:
    """Refuse an empty prompt, one over the input limit, and one that leaves no room for a token."""
    if num_prompt_tokens == 0:
        raise BadRequest("the prompt is empty", param=param)
    if num_prompt_tokens > max_input_tokens:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens, the limit is {max_input_tokens}", param=param
        )
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens and the model's context is {max_model_len}: "
            "nothing could be generated",
            param=param,
        )
