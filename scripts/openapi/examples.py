"""Bodies that every route takes, the shortest first: the parsers read them, and the document shows them."""

from __future__ import annotations

from typing import Any

_ASKED = [{"role": "user", "content": "Hello"}]
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = {"name": "weather", "description": "Weather of a city", "parameters": _PARAMETERS}
_ANSWER_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
_MESSAGES: tuple[dict[str, Any], ...] = (
    {"model": "base", "max_tokens": 64, "messages": _ASKED},
    {"model": "base", "max_tokens": 64, "messages": _ASKED, "stop_sequences": ["END"], "stream": True},
    {
        "model": "base",
        "max_tokens": 2048,
        "system": "Be brief.",
        "messages": _ASKED,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u-1"},
        "output_config": {"format": {"type": "json_schema", "schema": _ANSWER_SCHEMA}},
    },
    {
        "model": "base",
        "max_tokens": 64,
        "messages": _ASKED,
        "tools": [{"name": "weather", "description": "Weather of a city", "input_schema": _PARAMETERS}],
    },
)

EXAMPLES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": (
        {"model": "base", "messages": _ASKED},
        {"model": "base", "messages": _ASKED, "stream": True, "stream_options": {"include_usage": True}},
        {"model": "base", "messages": _ASKED, "tools": [{"type": "function", "function": _FUNCTION}]},
        {
            "model": "base",
            "messages": _ASKED,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _ANSWER_SCHEMA}},
        },
        {"model": "base", "messages": _ASKED, "structured_outputs": {"regex": "[0-9]{1,4}"}, "max_tokens": 8},
    ),
    "/v1/completions": (
        {"model": "base", "prompt": "Once upon a time"},
        {"model": "base", "prompt": ["One", "Two"], "max_tokens": 8, "echo": True, "logprobs": 2},
        {"model": "base", "prompt": [1, 2, 3], "stream": True, "stream_options": {"include_usage": True}},
    ),
    "/v1/responses": (
        {"model": "base", "input": "Hello"},
        {"model": "base", "input": _ASKED, "instructions": "Be brief.", "store": False, "stream": True},
        {"model": "base", "input": "Hello", "tools": [{"type": "function", **_FUNCTION}]},
        {
            "model": "base",
            "input": "Hello",
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": _ANSWER_SCHEMA}},
        },
        {"model": "base", "input": "Hello", "generate": False},
        {"model": "base", "input": "Hello", "stream_options": {"include_obfuscation": False}, "stream": True},
    ),
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": _MESSAGES,
    "/v1/embeddings": (
        {"model": "base", "input": "Hello"},
        {"model": "base", "input": [[1, 2], [3]], "encoding_format": "base64"},
    ),
    "/v1/score": (
        {"model": "base", "text_1": "What is red?", "text_2": ["A tomato is.", "The sea is not."]},
        {"model": "base", "queries": "What is red?", "documents": "A tomato is."},
        {"model": "base", "data_1": "What is red?", "data_2": "A tomato is.", "use_activation": False},
    ),
    "/v1/rerank": (
        {"model": "base", "query": "What is red?", "documents": ["A tomato is.", "The sea is not."], "top_n": 1},
    ),
    "/v1/batches": (
        {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/embeddings",
            "completion_window": "24h",
            "metadata": {"job": "nightly"},
            "output_expires_after": {"anchor": "created_at", "seconds": 86400},
        },
    ),
    "/v1/moderations": ({"input": "Hello"}, {"input": [{"type": "text", "text": "Hello"}]}),
    "/tokenize": ({"prompt": "Hello"}, {"model": "base", "messages": _ASKED, "return_token_strs": True}),
    "/detokenize": ({"tokens": [1, 2, 3]}, {"model": "base", "tokens": []}),
}
