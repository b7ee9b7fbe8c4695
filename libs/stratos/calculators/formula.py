"""Formulas as text that is evaluated: what is printed beside a number is what the number was computed by.

    KV = Formula("kv_token_bytes", "2 * layers * kv_heads * head_dim * element_bytes")
    KV(layers=32, kv_heads=8, head_dim=128, element_bytes=2)
        -> Figure(value=131072, numbers="2 * 32 * 8 * 128 * 2")

A formula is arithmetic: numbers, names, ``+ - * / // **``, and calls of the functions in ``FUNCTIONS``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Number = int | float

OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[..., Number]] = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a calculation, with where it comes from."""

    name: str
    """Name with its unit, as in ``kv_bytes``, in JSON and on the terminal."""
    value: Number
    source: str = ""
    """Where an input comes from, or why."""
    formula: str = ""
    """Empty where the value is an input."""
    inputs: Mapping[str, Number] = field(default_factory=dict)

    @property
    def numbers(self) -> str:
        """The formula with its numbers."""
        if not self.formula:
            return ""
        return ast.unparse(_Substituted(self.inputs).visit(ast.parse(self.formula, mode="eval").body)).replace("'", "")


@dataclass(frozen=True, slots=True)
class Formula:
    """A named formula; called with its names as keywords, it gives a ``Figure``."""

    name: str
    text: str
    tree: ast.expr = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", ast.parse(self.text, mode="eval").body)

    def __call__(self, source: str = "", /, **values: Number) -> Figure:
        """The figure for these values; ``source`` says more about it. Every value must be used."""
        return Figure(self.name, self.of(**values), source, self.text, values)

    def of(self, **values: Number) -> Number:
        """The value alone."""
        names = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)} - set(FUNCTIONS)
        assert names == set(values), f"{self.name} needs {sorted(names)}, not {sorted(values)}"
        return evaluate(self.tree, values)


def evaluate(node: ast.expr, values: Mapping[str, Number]) -> Number:
    """The value of an expression of arithmetic."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](evaluate(node.left, values), evaluate(node.right, values))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return FUNCTIONS[node.func.id](*(evaluate(argument, values) for argument in node.args))
    raise ValueError(f"not arithmetic: {ast.unparse(node)}")


class _Substituted(ast.NodeTransformer):
    """Puts values in the place of names; as text, so that a large number gets its separators."""

    def __init__(self, values: Mapping[str, Number]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._values:
            return node
        return ast.Constant(plain(self._values[node.id]))


def plain(value: Number) -> str:
    """A number for people: separators, and no more than five significant digits behind the point."""
    if isinstance(value, int) or (abs(value) < 1e18 and value == int(value)):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.1f}"
    return f"{value:.5g}"
