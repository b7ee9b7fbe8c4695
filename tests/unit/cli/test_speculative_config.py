"""``--speculative-config``: what it sets, and what it refuses by name."""

from __future__ import annotations

import pytest

from stratos.cli.data.speculative_config import parse_speculative_config
from stratos.common.errors import BadRequest


def test_it_sets_workers():
    assert parse_speculative_config("") == {}
    for text in ('{"method": "off"}', '{"method": "off", "num_speculative_tokens": "auto"}'):
        assert parse_speculative_config(text) == {"SCHEDULER__SPECULATION__METHOD": "off"}
    assert parse_speculative_config('{"method": "ngram", "num_speculative_tokens": 4}') == {
        "SCHEDULER__SPECULATION__METHOD": "ngram",
        "SCHEDULER__SPECULATION__NUM_SPECULATIVE_TOKENS": "4",
    }
    assert parse_speculative_config('{"method": "self"}') == {"SCHEDULER__SPECULATION__METHOD": "self"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram", "JSON object"),
        ("[1]", "JSON object"),
        ("{}", "needs one of the methods auto, off, ngram, suffix, draft, self, not null"),
        ('{"method": "self", "model": "/m"}', "has model, which is not known with this method"),
        ('{"method": "draft", "model": "/no/such"}', 'the folder of a draft model, not "/no/such"'),
        ('{"method": "draft"}', "the folder of a draft model, not null"),
        ('{"method": "draft", "model": 7}', "the folder of a draft model, not 7"),
        ('{"method": "ngram", "model": "/m"}', "has model, which is not known"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "nor between 1 and 16"),
        ('{"method": "ngram", "num_speculative_tokens": -1}', "nor between 1 and 16"),
        ('{"method": "ngram", "num_speculative_tokens": 1000000}', "nor between 1 and 16"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "nor between 1 and 16"),
    ],
)
def test_what_is_not_there_is_refused_by_name(text, message):
    with pytest.raises(BadRequest, match=message) as caught:
        parse_speculative_config(text)
    assert caught.value.param == "--speculative-config"
