"""Qwen 3 Coder: a function with its parameters in tags, values as plain text on lines of their own.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Source: chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

from stratos.text.output.notation.tagged import TaggedNotation
from stratos.text.output.reader import MalformedCall, Reading, TextReader, take_if_next, take_until
from stratos.text.output.syntax import CallCount, CallForm, CallSyntax
from stratos.text.output.tagged_values import TaggedArguments

BEGIN, END, FUNCTION, FUNCTION_END = "<tool_call>", "</tool_call>", "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


def read(reader: TextReader, mark: str, calls: CallCount) -> Reading[None]:
    """Read one function; some answers leave the outer tags away."""
    if mark == BEGIN and not (yield from take_if_next(reader, FUNCTION)):
        raise MalformedCall
    name = (yield from take_until(reader, ">")).strip()
    yield calls.begin(name)
    arguments = TaggedArguments(calls, name, line_breaks=True)
    while (yield from take_if_next(reader, PARAMETER)):
        parameter = (yield from take_until(reader, ">")).strip()
        yield from arguments.read(reader, parameter, PARAMETER_END)
    if not (yield from take_if_next(reader, FUNCTION_END)):
        raise MalformedCall
    yield calls.arguments(arguments.close())
    yield calls.end()
    yield from take_if_next(reader, END)


QWEN_CODER = CallSyntax(
    name="qwen 3 coder",
    marks=(BEGIN, FUNCTION),
    read=read,
    form=CallForm(
        before=f"{BEGIN}\n{FUNCTION}{{name}}>\n",
        after=f"{FUNCTION_END}\n{END}",
        between="\n",
        arguments=TaggedNotation(before_key=PARAMETER, after_key=">\n", margin="\n", end=PARAMETER_END, after="\n"),
    ),
    special=(BEGIN, END),
)
