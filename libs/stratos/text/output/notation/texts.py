"""Texts that are written as they are, without quotes and escapes, up to a mark that ends them."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.text.output.notation.lark import ANY, ANYTHING, LarkWriter, regex, without
from stratos.text.output.notation.schemas import COMBINING, Schema, Unenforceable, refuse_keywords

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,8}}"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "hostname": _HOST,
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(\.[A-Za-z0-9_+-]{{1,32}}){{0,3}}@{_HOST}",
    "uri": rf"(https?|ftp)://{_HOST}(:[1-9][0-9]{{0,3}})?(/[A-Za-z0-9._~-]{{0,256}}){{0,32}}(\?[A-Za-z0-9._~=&-]{{0,1024}})?",
}
"""Regular expressions of which every match is of the format; not every text of a format matches."""


def text_rules(
    rule: str, schema: Schema, end: str, lark: LarkWriter, *, margin: str = "", barred: Sequence[str] = ()
) -> list[str]:
    """Rules of a text that obeys and of the mark that ends it.

    Args:
        rule: their name.
        schema: of a text.
        end: the mark.
        lark: writes it.
        margin: stands between the text and the mark.
        barred: spellings that no text may hold, besides the mark.

    Raises:
        Unenforceable: the schema asks for more, or no text obeys.
    """
    refuse_keywords(schema, COMBINING, ("type", "enum", "const"))
    allowed = _allowed(schema)
    if allowed is None:
        terminal = without((end, *barred), " & ".join(_parts(schema)))
        return lark.up_to(rule, f"{margin}{end}", terminal)
    fit = [text for text in allowed if not any(mark in text for mark in (end, *barred))]
    if not fit:
        raise Unenforceable("none of the values of enum can be written in the call syntax of this model")
    ending = lark.literal(f"{margin}{end}")
    written = " | ".join(lark.literal(text) or '""' for text in fit)
    return [lark.rule(rule, f"({written}) {ending}")]


def _allowed(schema: Schema) -> list[str] | None:
    """The texts of a list of values; ``None`` where there is none."""
    if "const" not in schema and "enum" not in schema:
        return None
    refuse_keywords(schema, ("minLength", "maxLength", "pattern", "format"), ())
    values = [schema["const"]] if "const" in schema else schema["enum"]
    return [value for value in values if isinstance(value, str)]


def _parts(schema: Schema) -> list[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    parts = [ANY] if not least and most is None else [regex(f"(.|\\n){{{least},{'' if most is None else most}}}")]
    if (pattern := schema.get("pattern")) is not None:
        parts.append(regex(_searched(str(pattern))))
    if (form := schema.get("format")) is not None:
        if form not in FORMATS:
            raise Unenforceable(f"the format {str(form)[:100]} cannot be enforced in the call syntax of this model")
        parts.append(regex(FORMATS[form]))
    return parts


def _searched(pattern: str) -> str:
    """An expression of the whole text for one that is to be found anywhere in it."""
    if _has_alternatives(pattern):
        pattern = f"({pattern})"  # whose own ^ and $ are for the compiler to refuse
    has_start = pattern.startswith("^")
    has_end = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[has_start : len(pattern) - has_end]
    return f"{'' if has_start else ANYTHING}({inner}){'' if has_end else ANYTHING}"


def _has_alternatives(pattern: str) -> bool:
    """Whether the whole of it is several alternatives."""
    depth, is_class, is_escaped = 0, False, False
    for char in pattern:
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif is_class:
            is_class = char != "]"
        elif char == "[":
            is_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            return True
    return False
