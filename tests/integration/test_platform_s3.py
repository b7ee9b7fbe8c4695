"""The platform with the other implementation of each contract: adapters in S3, KV over Gloo."""

import openai

from tests.support.platform_process import running_platform
from tests.support.s3_server import BUCKET, s3_server


def test_adapters_from_s3_and_kv_over_gloo_give_the_same_tokens(real_platform, tmp_path):
    prompt = "def test_reader(self):\n" * 12
    expected = answer(real_platform, prompt)
    with (
        s3_server() as url,
        running_platform(
            tmp_path, "--object-store", f"s3://{BUCKET}/models", "--s3-endpoint", url, "--transport", "gloo"
        ) as platform,
    ):
        assert answer(platform, prompt) == expected
        metrics = {worker["role"]: worker["engine_step"] for worker in platform.status()["workers"]}
        assert metrics["prefill"] > 1, "the prompt was not computed in the prefill worker"


def answer(platform, prompt):
    client = openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=60)
    with client:
        text = client.completions.create(model="unit-tests", prompt=prompt, max_tokens=40, temperature=0)
    return text.choices[0].text
