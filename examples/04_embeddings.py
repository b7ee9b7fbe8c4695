"""Embeddings with the official SDK: several texts in one call, compared by their dot products.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/04_embeddings.py

The model that ships was not trained to tell texts apart by meaning: the numbers show that the route works, no more.
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
texts = ["def add(a, b):\n    return a + b", "def sub(a, b):\n    return a - b", "The museum opens at nine."]
answer = client.embeddings.create(model="base", input=texts)
vectors = [item.embedding for item in answer.data]
assert len(vectors) == len(texts)
assert all(abs(sum(value * value for value in vector) - 1) < 0.01 for vector in vectors), "each has the length 1"
print(f"{len(vectors)} vectors of {len(vectors[0])} components for {answer.usage.total_tokens} tokens")
for text, vector in zip(texts, vectors, strict=True):
    products = [sum(a * b for a, b in zip(vector, other, strict=True)) for other in vectors]
    print(" ".join(f"{product:6.3f}" for product in products), repr(text[:30]))
