"""Prompt templates: texts with variables, in a part of Jinja of which every template ends soon.

What a template may hold is a list, and anything else is refused when it is stored: there are no calls, no arithmetic,
no assignments and no macros, attributes are those of the variables' objects alone, and filters are the few below.
Rendering is bounded as well: by a budget of steps (what a loop runs, what filters read) and by the size of the output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, LoopContext, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stratos.common.errors import BadRequest
from stratos.core.tenancy.content import MAX_TEMPLATE_CHARS

MAX_OUTPUT_CHARS = 262_144
MAX_VARIABLE_CHARS = 65_536
"""Of all values together, as JSON."""
MAX_STEPS = 200_000
"""A loop's turn takes as many as the template has nodes; a filter, one more for each 64 characters that it reads."""
MAX_NODES, MAX_DEPTH, MAX_LOOPS, MAX_FILTERS = 2000, 40, 3, 3
_CHARS_PER_STEP = 64
_BUDGET = "_budget"
_LOOP_FACTS = frozenset({"index", "index0", "first", "last", "length"})
_TESTS = frozenset(
    {"defined", "undefined", "none", "string", "number", "mapping", "sequence", "true", "false", "boolean"}
)
_ALLOWED: tuple[type[nodes.Node], ...] = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem, nodes.If,
    nodes.For, nodes.CondExpr, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand, nodes.Test, nodes.Filter,
    nodes.List, nodes.Tuple,
)  # fmt: skip
_GROWING = frozenset({"join", "tojson"})


class _Budget:
    """Budget of a rendering: steps that it has left, and steps per turn of a loop."""

    def __init__(self, steps: int, per_turn: int) -> None:
        self._left = steps
        self.per_turn = per_turn

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _too_large("the prompt template takes too many steps with these variables")


class _Counted(list[Any]):
    """A list whose turns are counted."""

    def __init__(self, values: Sequence[Any], budget: _Budget) -> None:
        super().__init__(values)
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            self._budget.spend(self._budget.per_turn)
            yield value


class _Environment(ImmutableSandboxedEnvironment):
    """Attributes are fields of objects, never those of Python's types."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, LoopContext):
            known = attribute in _LOOP_FACTS
            return getattr(obj, attribute) if known else self.undefined(obj=obj, name=attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        try:
            if isinstance(obj, Mapping) or (isinstance(obj, list) and type(argument) is int):
                return obj[argument]
        except (LookupError, TypeError):
            pass
        return self.undefined(obj=obj, name=argument)


class CompiledPrompt:
    """One text of a template, ready to be rendered.

    Args:
        source: as stored.

    Raises:
        BadRequest: it is not valid, or holds what templates may not hold.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise _refused(f"a text has at most {MAX_TEMPLATE_CHARS} characters")
        try:
            tree = _ENVIRONMENT.parse(source)
            self._num_nodes = _check(tree)
            self.variables = frozenset(find_undeclared_variables(tree))
            self._template = _ENVIRONMENT.from_string(source)
        except (jinja2.TemplateError, SyntaxError) as error:
            raise _refused(str(error)[:200]) from error
        except (RecursionError, MemoryError, ValueError, OverflowError) as error:
            raise _refused("it is nested too deep, or holds a number that is too large") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text with values in the place of variables.

        Args:
            variables: every one of ``variables``, as JSON has them; others are not seen.

        Raises:
            BadRequest: a value lacks what the template reads of it, or the output is too large.
        """
        budget = _Budget(MAX_STEPS, max(1, self._num_nodes))
        values = {name: _counted(value, budget) for name, value in variables.items()}
        parts, num_chars = [], 0
        try:
            for part in self._template.generate({**values, _BUDGET: budget}):
                num_chars += len(part)
                if num_chars > MAX_OUTPUT_CHARS:
                    raise _too_large(f"the rendered prompt has more than {MAX_OUTPUT_CHARS} characters")
                parts.append(part)
        except (jinja2.TemplateError, TypeError, ValueError, OverflowError) as error:
            raise BadRequest(
                "the prompt template cannot be rendered: a variable lacks what the template reads of it, or is of "
                "another type",
                param="prompt.variables",
                code="invalid_prompt_variables",
            ) from error
        return "".join(parts)


def check_variables(given: Mapping[str, Any], wanted: frozenset[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a request, with defaults for what it leaves out.

    Raises:
        BadRequest: one is missing, is not of the template, or all together are too large.
    """
    for name in given:
        if name not in wanted:
            raise _bad_variable(f"the prompt template has no variable {name[:64]!r}", name)
    values = {**{name: value for name, value in defaults.items() if name in wanted}, **given}
    for name in sorted(wanted):
        if name not in values:
            raise _bad_variable(f"the prompt template needs the variable {name!r}", name)
    if sum(len(json.dumps(value, ensure_ascii=False)) for value in values.values()) > MAX_VARIABLE_CHARS:
        raise _too_large(f"the variables of a prompt have at most {MAX_VARIABLE_CHARS} characters")
    return values


def check_defaults(defaults: Mapping[str, Any], variables: frozenset[str]) -> None:
    """Refuse defaults of variables that there are not, and values that no request could give; raises ``BadRequest``."""
    if strange := sorted(defaults.keys() - variables):
        raise _refused(f"it has a default of {strange[0][:64]!r} and no such variable")
    check_variables({}, frozenset(defaults), defaults)


def _counted(value: Any, budget: _Budget) -> Any:
    if isinstance(value, list):
        return _Counted([_counted(entry, budget) for entry in value], budget)
    if isinstance(value, Mapping):
        return {str(key): _counted(entry, budget) for key, entry in value.items()}
    return value


def _check(tree: nodes.Template) -> int:
    """Walk the template; returns its number of nodes."""
    num_nodes = 0
    todo: list[tuple[nodes.Node, int, int, int]] = [(tree, 0, 0, 0)]
    while todo:
        node, depth, loops, filters = todo.pop()
        num_nodes += 1
        loops += isinstance(node, nodes.For)
        filters = filters + 1 if isinstance(node, nodes.Filter) else 0
        if num_nodes > MAX_NODES or depth > MAX_DEPTH or loops > MAX_LOOPS or filters > MAX_FILTERS:
            raise _refused("it has too many parts, or they are nested too deep")
        _check_node(node)
        todo += [(child, depth + 1, loops, filters) for child in node.iter_child_nodes()]
    return num_nodes


def _check_node(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED):
        raise _refused(f"{type(node).__name__.lower()} is not allowed in it")
    if isinstance(node, nodes.Name) and (node.name.startswith("_") or node.name == "self"):
        raise _refused("names do not start with _, and self is none")
    if isinstance(node, nodes.For) and (node.recursive or not _is_path(node.iter)):
        raise _refused("a loop goes over a variable, or a field of one")
    if isinstance(node, nodes.Test) and (node.name not in _TESTS or node.args):
        raise _refused(f"there is no test {node.name[:40]!r}")
    if isinstance(node, nodes.Filter):
        _check_filter(node)


def _check_filter(node: nodes.Filter) -> None:
    if node.name not in _FILTERS or node.node is None or node.kwargs or node.dyn_args or node.dyn_kwargs:
        raise _refused(f"there is no filter {node.name[:40]!r}, or not with these arguments")
    if len(node.args) > (node.name in ("join", "default")) or not all(isinstance(a, nodes.Const) for a in node.args):
        raise _refused(f"the filter {node.name} does not take these arguments")
    # One growing filter makes a text some times longer; several in a row would make it longer without end.
    if node.name in _GROWING and (node.node.find(nodes.Filter) or not _is_path(node.node)):
        raise _refused(f"the filter {node.name} works on a variable, or a field of one")
    if node.name == "join" and node.args and len(str(node.args[0].as_const())) > 16:
        raise _refused("the filter join puts at most 16 characters between two texts")


def _is_path(node: nodes.Node) -> bool:
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        node = node.node
    return isinstance(node, nodes.Name)


def _filter(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it reads; of a list or an object that may be everything."""

    @pass_context
    def run(context: Context, value: Any, *args: Any) -> Any:
        num_chars = len(value) if isinstance(value, str) else MAX_VARIABLE_CHARS if name in _GROWING else 0
        context[_BUDGET].spend(num_chars // _CHARS_PER_STEP + 1)
        return work(value, *args)

    return run


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _join(value: Any, separator: Any = "") -> str:
    if not isinstance(value, list):
        raise TypeError("join takes a list")
    return str(separator).join(map(str, value))


def _default(value: Any, other: Any = "") -> Any:
    return other if value is None or isinstance(value, jinja2.Undefined) else value


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "capitalize": lambda value: str(value).capitalize(),
    "title": lambda value: str(value).title(),
    "trim": lambda value: str(value).strip(),
    "length": len,
    "default": _default,
    "join": _join,
    "tojson": _to_json,
}


def _environment() -> _Environment:
    environment = _Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, cache_size=0
    )
    environment.globals.clear()
    environment.filters = {name: _filter(name, work) for name, work in _FILTERS.items()}
    environment.tests = {name: test for name, test in environment.tests.items() if name in _TESTS}
    return environment


_ENVIRONMENT = _environment()


def _refused(why: str) -> BadRequest:
    return BadRequest(f"the prompt template cannot be taken: {why}", param="templates", code="invalid_prompt_template")


def _bad_variable(text: str, name: str) -> BadRequest:
    return BadRequest(text, param=f"prompt.variables.{name[:64]}", code="invalid_prompt_variables")


def _too_large(text: str) -> BadRequest:
    return BadRequest(text, param="prompt.variables", code="prompt_too_large")
