"""Answers that obey a regular expression, a list of choices, a grammar or a JSON schema, with plain HTTP.

BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-... python examples/06_structured_outputs.py
"""

import json
import os
import re

import httpx

CHOICES = ["red", "green", "blue"]
DATE = r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"
SUM = """
start: NUMBER (" + " NUMBER){1,3}
NUMBER: /[1-9][0-9]?/
"""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z_]{1,12}$"}, "count": {"type": "integer", "maximum": 9}},
    "required": ["name", "count"],
    "additionalProperties": False,
}

client = httpx.Client(
    base_url=os.environ["BASE_URL"], headers={"authorization": f"Bearer {os.environ['API_KEY']}"}, timeout=60
)


def complete(prompt: str, **wanted: object) -> str:
    """Go on with a prompt in the wanted form."""
    body = {"model": "base", "prompt": prompt, "max_tokens": 120, "temperature": 0, "structured_outputs": wanted}
    answer = client.post("/completions", json=body).raise_for_status().json()["choices"][0]
    assert answer["finish_reason"] == "stop", answer
    return answer["text"]


color = complete("color = ", choice=CHOICES)
assert color in CHOICES
date = complete("date = ", regex=DATE)
assert re.fullmatch(DATE, date)
total = complete("total = ", grammar=SUM)
assert len(total.split(" + ")) >= 2
item = json.loads(complete("item = ", json=SCHEMA))
assert item["count"] <= 9
print(color, date, total, item, sep="\n")

refused = client.post("/completions", json={"model": "base", "prompt": "x", "structured_outputs": {"regex": "(["}})
assert refused.status_code == 400
print(refused.json()["error"]["param"], "->", refused.json()["error"]["message"])
