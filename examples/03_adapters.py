"""The same prompt to the base model and to every adapter; requests of different adapters share one batch.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/03_adapters.py
"""

import asyncio
import os

from openai import AsyncOpenAI

PROMPT = "The following"


async def main() -> None:
    """Ask all models at the same time."""
    client = AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
    models = [model.id async for model in client.models.list()]
    answers = await asyncio.gather(
        *(client.completions.create(model=name, prompt=PROMPT, max_tokens=24, temperature=0) for name in models)
    )
    assert len({answer.choices[0].text for answer in answers}) == len(models), "every adapter writes in its own way"
    for name, answer in zip(models, answers, strict=True):
        print(f"{name:<16} {PROMPT}{answer.choices[0].text!r}")


asyncio.run(main())
