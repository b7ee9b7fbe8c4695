"""An answer that obeys a JSON schema, by OpenAI's response_format and by structured_outputs."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
schema = {
    "type": "object",
    "properties": {
        "language": {"enum": ["python", "c", "rust"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["language", "stars"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model="base",
    messages=[{"role": "user", "content": "Rate a language."}],
    max_tokens=200,
    response_format={"type": "json_schema", "json_schema": {"name": "rating", "strict": True, "schema": schema}},
)
assert answer.choices[0].finish_reason == "stop"
print(json.loads(answer.choices[0].message.content))

version = client.completions.create(
    model="base",
    prompt="version = ",
    max_tokens=20,
    extra_body={"structured_outputs": {"regex": r"[0-9]\.[0-9]{1,2}\.[0-9]"}},
)
print(version.choices[0].text)
