"""Embeddings through the whole platform with the shipped model, against ``transformers`` and ``peft``."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch

from tests.support.reference.hf_reference import Reference, spread_prompts
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def client(real_platform: PlatformProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=real_platform.base_url, api_key=real_platform.api_key, max_retries=0, timeout=LIMIT_S)


@pytest.mark.parametrize("adapter", [None, pytest.param("unit-tests", marks=pytest.mark.slow)])
def test_vectors_equal_transformers(client: openai.OpenAI, adapter: str | None) -> None:
    inputs = spread_prompts(8, 2000)
    answer = client.embeddings.create(model=adapter or "base", input=inputs)
    assert answer.usage.total_tokens == sum(map(len, inputs))
    reference = Reference(adapter)
    body = reference.model.model if adapter is None else reference.model.base_model.model.model
    for item, ids in zip(answer.data, inputs, strict=True):
        with torch.inference_mode():
            state = body(torch.tensor([ids])).last_hidden_state[0, -1].float()
        ours = torch.tensor(item.embedding)
        assert (ours - torch.nn.functional.normalize(state, dim=0)).abs().max() < TOLERANCE


def test_embedding_happens_at_the_prefill_worker_beside_streams(
    real_platform: PlatformProcess, client: openai.OpenAI
) -> None:
    def steps() -> int:
        return {w["worker_id"]: w["engine_step"] for w in real_platform.status()["workers"]}["prefill-0"]

    before = steps()
    with ThreadPoolExecutor(8) as pool:
        texts = [f"the {i}th text " * (i + 1) for i in range(24)]
        stream = pool.submit(client.completions.create, model="base", prompt="def f(", max_tokens=64, temperature=0)
        alone = [pool.submit(client.embeddings.create, model="base", input=text) for text in texts]
        together = client.embeddings.create(model="base", input=texts)
        assert stream.result().choices[0].text
        for item, single in zip(together.data, alone, strict=True):
            (one,) = single.result().data
            assert item.embedding == pytest.approx(one.embedding, abs=1e-5)
    wait_until(lambda: steps() > before, what="a step of the prefill worker")
    models = {model.id: model for model in client.models.list()}
    assert all("embeddings" in model.capabilities for model in models.values())
