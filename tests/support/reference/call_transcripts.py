"""Outputs with calls, in the form that each family's own chat template gives a message with ``tool_calls``.

Templates that their texts were taken from, for want of the models themselves:

- hermes: Qwen/Qwen2.5-7B-Instruct, Qwen/Qwen3-8B: name and arguments (tojson) in one object between tags
- mistral: mistralai/Mistral-Small-3.1-24B-Instruct-2503; with [ARGS] Ministral 3, with [CALL_ID], too, Small 3.2
- llama 3: meta-llama/Llama-3.1-8B-Instruct; several objects with semicolons are as models write them, not the template
- llama 4: meta-llama/Llama-4-Scout-17B-16E-Instruct
- deepseek: deepseek-ai/DeepSeek-V3.1; fenced: vLLM's template for DeepSeek-R1
- gemma 4: llama.cpp's template for it, models/templates/gemma4.jinja; vLLM's gives the same
- glm: zai-org/GLM-4.5
- phi: llama.cpp's template for microsoft/Phi-4-mini-instruct; the list is not from a template
- qwen 3 coder: vLLM's template for it, of which Qwen 3.5 writes the same
- pythonic: vLLM's template for Llama 4, with a text in single quotes, numbers and lists, which that writes as texts
- harmony: openai/gpt-oss-20b, with the recipient first; after the channel it stands where the model writes it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallSyntax
from stratos.text.output.syntaxes.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from stratos.text.output.syntaxes.gemma import GEMMA
from stratos.text.output.syntaxes.glm import GLM
from stratos.text.output.syntaxes.harmony import HARMONY
from stratos.text.output.syntaxes.hermes import HERMES
from stratos.text.output.syntaxes.llama_json import LLAMA_4_JSON, LLAMA_JSON
from stratos.text.output.syntaxes.mistral import MISTRAL, MISTRAL_ARGS
from stratos.text.output.syntaxes.phi import PHI
from stratos.text.output.syntaxes.pythonic import PYTHONIC
from stratos.text.output.syntaxes.qwen_coder import QWEN_CODER


@dataclass(frozen=True, kw_only=True)
class CallTranscript:
    """One output and what is in it."""

    name: str
    syntax: CallSyntax
    output: str
    calls: tuple[tuple[str, str], ...]
    """Name and arguments, byte for byte."""
    text: str = ""
    reasoning: str = ""
    schemas: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> OutputShape:
        """The shape that it is read with."""
        return OutputShape(syntax=self.syntax, frame=self.syntax.frame, schemas=self.schemas)


ARGUMENTS = '{"a": "Z\\u00fc \\"}{ \u00e9\U0001f600", "b": [1, {"c": [null, -1.5e3]}]}'
TYPES = {
    "f": {
        "properties": {
            "code": {"type": "string"},
            "n": {"type": "integer"},
            "zip": {"enum": ["0123"]},
            "flag": {"type": "boolean"},
        }
    }
}
TRANSCRIPTS = (
    CallTranscript(
        name="hermes: one call",
        syntax=HERMES,
        output=f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
        calls=(("get_weather", ARGUMENTS),),
    ),
    CallTranscript(
        name="hermes: text, then two calls",
        syntax=HERMES,
        output='Let me see.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g-1", "arguments": {"a": "<tool_call>"}}\n</tool_call>',
        calls=(("f", "{}"), ("g-1", '{"a": "<tool_call>"}')),
        text="Let me see.",
    ),
    CallTranscript(
        name="hermes: arguments before the name, as in Hermes 2 Pro",
        syntax=HERMES,
        output='<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>\n',
        calls=(("f", '{"a": 1}'),),
    ),
    CallTranscript(
        name="hermes: arguments as a string",
        syntax=HERMES,
        output='<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call> after',
        calls=(("f", '{"a": 1}'),),
        text="after",
    ),
    CallTranscript(
        name="hermes: no arguments",
        syntax=HERMES,
        output='<tool_call>{"id": 7, "name": "now"}</tool_call>',
        calls=(("now", "{}"),),
    ),
    CallTranscript(
        name="mistral: a list",
        syntax=MISTRAL,
        output=f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}, "id": "abcdefghi"}}, '
        '{"name": "g", "arguments": {}, "id": "123456789"}]',
        calls=(("f", ARGUMENTS), ("g", "{}")),
    ),
    CallTranscript(
        name="mistral: names and arguments",
        syntax=MISTRAL_ARGS,
        output=f'Sure.[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{{"a": 1}}',
        calls=(("f", ARGUMENTS), ("g", '{"a": 1}')),
        text="Sure.",
    ),
    CallTranscript(
        name="llama: one object",
        syntax=LLAMA_JSON,
        output=f'\n{{"name": "f", "parameters": {ARGUMENTS}}}',
        calls=(("f", ARGUMENTS),),
    ),
    CallTranscript(
        name="llama: several behind the tag",
        syntax=LLAMA_JSON,
        output='<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}; '
        '{"name": "g", "parameters": {}}',
        calls=(("f", '{"a": 1}'), ("g", "{}")),
    ),
    CallTranscript(
        name="llama 4: text between marks, then two calls",
        syntax=LLAMA_4_JSON,
        output='<|python_start|>I look.<|python_end|>{"name": "f", "parameters": {"a": {"b": "}"}}}'
        '{"name": "g", "parameters": {}}',
        calls=(("f", '{"a": {"b": "}"}}'), ("g", "{}")),
        text="I look.",
    ),
    CallTranscript(
        name="llama: an answer in JSON",
        syntax=LLAMA_JSON,
        output='{"answer": [1, 2], "name": "x"}',
        calls=(),
        text='{"answer": [1, 2], "name": "x"}',
    ),
    CallTranscript(
        name="deepseek: two calls",
        syntax=DEEPSEEK,
        output="Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
        f"{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        calls=(("f", ARGUMENTS), ("g", "{}")),
        text="Let me see.",
    ),
    CallTranscript(
        name="deepseek: fenced",
        syntax=DEEPSEEK_FENCED,
        output="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        calls=(("f", ARGUMENTS), ("g", "{}")),
    ),
    CallTranscript(
        name="phi: an object",
        syntax=PHI,
        output=f'<|tool_call|>{{"name": "f", "arguments": {ARGUMENTS}}}<|/tool_call|>',
        calls=(("f", ARGUMENTS),),
    ),
    CallTranscript(
        name="phi: a list",
        syntax=PHI,
        output='<|tool_call|>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": 1}}]<|/tool_call|>',
        calls=(("f", "{}"), ("g", '{"a": 1}')),
    ),
    CallTranscript(
        name="qwen 3 coder: values of all types",
        syntax=QWEN_CODER,
        output='I will.\n\n<tool_call>\n<function=f>\n<parameter=code>\n\nif a < b:\n\tprint("x")\n\n</parameter>\n'
        "<parameter=n>\n12\n</parameter>\n<parameter=zip>\n0123\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n"
        '<parameter=list>\n[1, {"a": null}]\n</parameter>\n</function>\n</tool_call>',
        calls=(
            (
                "f",
                '{"code": "\\nif a < b:\\n\\tprint(\\"x\\")\\n", "n": 12, "zip": "0123", "flag": true, '
                '"list": [1, {"a": null}]}',
            ),
        ),
        text="I will.",
        schemas=TYPES,
    ),
    CallTranscript(
        name="qwen 3 coder: no parameters, no outer tags",
        syntax=QWEN_CODER,
        output="<function=f>\n</function>",
        calls=(("f", "{}"),),
    ),
    CallTranscript(
        name="glm: values of all types",
        syntax=GLM,
        output="\nYes.\n<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>a</arg_ b\n</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n<arg_key>other</arg_key>\n"
        '<arg_value>{"a": [1]}</arg_value>\n</tool_call>',
        calls=(("f", '{"code": "a</arg_ b\\n", "n": 12, "other": {"a": [1]}}'),),
        text="\nYes.",
        schemas=TYPES,
    ),
    CallTranscript(
        name="gemma 4: values of all types, two calls",
        syntax=GEMMA,
        output='I look.<|tool_call>call:f{city:<|"|>Z\u00fcrich "N", {x}\n<|"|>,days:[1,-2.5],'
        "deep:{l:[],ok:true}}<tool_call|><|tool_call>call:g{}<tool_call|>",
        calls=(
            ("f", '{"city": "Z\u00fcrich \\"N\\", {x}\\n", "days": [1, -2.5], "deep": {"l": [], "ok": true}}'),
            ("g", "{}"),
        ),
        text="I look.",
    ),
    CallTranscript(
        name="pythonic: two calls",
        syntax=PYTHONIC,
        output="[get_weather(city='Z\\u00fcrich, (\\'N\\')', days=[1, (2, 3)], "
        'deep={"a": None}, ok=true), mod.now()]',
        calls=(
            ("get_weather", '{"city": "Z\u00fcrich, (\'N\')", "days": [1, [2, 3]], "deep": {"a": null}, "ok": true}'),
            ("mod.now", "{}"),
        ),
    ),
    CallTranscript(
        name="pythonic: an answer in brackets",
        syntax=PYTHONIC,
        output="[1, 2] is a list",
        calls=(),
        text="[1, 2] is a list",
    ),
    CallTranscript(
        name="harmony: reasoning, a preamble and a call",
        syntax=HARMONY,
        output="<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        calls=(("f", ARGUMENTS),),
        text="I look.",
        reasoning="Hm.",
    ),
    CallTranscript(
        name="harmony: the recipient first, and two calls",
        syntax=HARMONY,
        output=" to=functions.f<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        calls=(("f", "{}"), ("g", '{"a": 1}')),
    ),
    CallTranscript(
        name="harmony: an answer",
        syntax=HARMONY,
        output="<|channel|>final<|message|> Hello <there>",
        calls=(),
        text=" Hello <there>",
    ),
)
