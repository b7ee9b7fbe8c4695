"""Log probabilities with plain HTTP: of an answer's tokens and their rivals, and of a text that is only read.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/07_logprobs.py
"""

import math
import os

import httpx

client = httpx.Client(
    base_url=os.environ["BASE_URL"], headers={"authorization": f"Bearer {os.environ['API_KEY']}"}, timeout=60
)


def post(route: str, **body: object) -> dict:
    """The first choice of an answer."""
    return client.post(route, json={"model": "base", **body}).raise_for_status().json()["choices"][0]


answer = post(
    "/chat/completions",
    messages=[{"role": "user", "content": "Write the function read_lines."}],
    max_tokens=6,
    temperature=0,
    logprobs=True,
    top_logprobs=3,
)
for entry in answer["logprobs"]["content"]:
    rivals = ", ".join(f"{rival['token']!r} {math.exp(rival['logprob']):.0%}" for rival in entry["top_logprobs"])
    print(f"{entry['token']!r:12} {math.exp(entry['logprob']):4.0%}   of {rivals}")
# parts of characters have no text of their own: put the bytes of tokens together, then decode
raw = b"".join(bytes(entry["bytes"]) for entry in answer["logprobs"]["content"])
assert raw.decode("utf-8", "replace").startswith(answer["message"]["content"])

for text in ("def add(a, b):\n    return a + b\n", "def add(a, b):\n    return banana\n"):
    scored = post("/completions", prompt=text, echo=True, logprobs=0, max_tokens=1)["logprobs"]
    logprobs = [
        p for p, offset in zip(scored["token_logprobs"], scored["text_offset"], strict=True) if offset < len(text)
    ]
    mean = sum(logprobs[1:]) / (len(logprobs) - 1)  # nothing predicts the first token
    print(f"perplexity {math.exp(-mean):7.1f}   {text!r}")
