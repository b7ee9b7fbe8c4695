"""Through the whole platform, prefill in one process and decode in another: the output equals ``transformers``.

Prompts of 1 token to the model's context, with and without an adapter: greedy tokens and the log probability at every
position, float32 on both sides; 50 of them in the form that is marked slow, else 4 of a quarter of the context.  A
difference counts as equal only where the reference's two logits differ by less than 1e-4; each is printed, more than
one in a form fails.
"""

import asyncio

import httpx
import pytest

from tests.support.reference.hf_reference import Reference, Verdict, spread_prompts
from tests.support.waiting import LIMIT_S

NUM_TOKENS, CONTEXT = 64, 4096
CONCURRENCY = 6


async def complete(client: httpx.AsyncClient, gate: asyncio.Semaphore, model: str, prompt: list[int]):
    body = {
        "model": model, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
        "logprobs": 1, "return_token_ids": True,
    }  # fmt: skip
    async with gate:
        response = await client.post("/completions", json=body)
        while response.status_code == 503:  # a busy machine had no room in time
            response = await client.post("/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert response.json()["usage"]["completion_tokens"] == NUM_TOKENS
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


async def complete_all(platform, model, prompts):
    headers = {"authorization": f"Bearer {platform.api_key}"}
    gate = asyncio.Semaphore(CONCURRENCY)
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=LIMIT_S) as client:
        return await asyncio.gather(*(complete(client, gate, model, prompt) for prompt in prompts))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num_prompts", "context"), [(4, CONTEXT // 4), pytest.param(50, CONTEXT, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("adapter", [None, pytest.param("unit-tests", marks=pytest.mark.slow)])
def test_platform_output_equals_transformers(real_platform, adapter, num_prompts, context):
    prompts = spread_prompts(num_prompts, context - NUM_TOKENS)
    answers = asyncio.run(complete_all(real_platform, adapter or "base", prompts))
    reference, verdict = Reference(adapter), Verdict()
    for prompt, (tokens, logprobs) in zip(prompts, answers, strict=True):
        reference.check(verdict, prompt, tokens, logprobs)
    worst = verdict.worst_logprob_error
    print(f"{verdict.num_prompts} prompts, ties {verdict.ties}, worst log probability error {worst:.1e}")
    assert len(verdict.ties) <= 1


def test_usage_tells_cached_tokens_even_when_a_stop_string_ends_the_stream(real_platform):
    headers = {"authorization": f"Bearer {real_platform.api_key}"}
    body = {"model": "base", "prompt": list(range(100, 180)), "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    with httpx.Client(base_url=real_platform.base_url, headers=headers, timeout=LIMIT_S) as client:
        text = client.post("/completions", json=body).json()["choices"][0]["text"]
        answer = client.post("/completions", json={**body, "stop": text[4:7]}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 32
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
