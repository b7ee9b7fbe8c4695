"""Two completions of one prompt with the official SDK: seeded, with log probabilities.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/02_openai_sdk.py
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
answer = client.completions.create(
    model="base",
    prompt="def is_even(number):\n    return ",
    max_tokens=12,
    n=2,
    seed=7,
    temperature=0.7,
    logprobs=1,
    stop=["\n"],
)
for choice in answer.choices:
    total = sum(choice.logprobs.token_logprobs)
    print(f"choice {choice.index} ({choice.finish_reason}, log probability {total:.2f}): {choice.text}")
assert [choice.index for choice in answer.choices] == [0, 1]
assert all("\n" not in choice.text for choice in answer.choices), "a stop string ends a choice and is left out"
assert all(1 <= len(choice.logprobs.tokens) <= 12 for choice in answer.choices)
assert all(value <= 0 for choice in answer.choices for value in choice.logprobs.token_logprobs)
print(f"{answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} output tokens")
