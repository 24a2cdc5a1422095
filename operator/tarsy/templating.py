"""Text by the templates of the platform file: Jinja2, sandboxed, with a bounded output.

A template belongs to the platform admin, and its values come from alerts and models. A value is never read as a
template. The sandbox refuses attributes that lead out of the values, changes of them, and `*` and `**`, with which a
short template makes a huge text. A rendering ends after STEPS_MAX rounds of loops and calls, so a template that loops
holds nothing up.

Source: Jinja2 documentation, "Sandbox", "Low Level API".
"""

from __future__ import annotations

import contextvars
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import exceptions, meta, nodes, sandbox

STEPS_MAX = 10_000
"""The rounds of loops and the calls of one rendering."""
_COUNTED = "counted"


class TemplateError(Exception):
    """A template cannot be used; the message quotes the template alone, and no value."""


_steps: contextvars.ContextVar[Iterator[int]] = contextvars.ContextVar("steps")
"""The numbers of the steps of the rendering."""


class _StepsError(exceptions.SecurityError):
    """A rendering has taken all its steps."""


def _count(value: Any = None) -> Any:
    """Return `value`, after one more step."""
    if next(_steps.get()) >= STEPS_MAX:
        raise _StepsError
    return value


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Return the syntax tree, with a count of the rounds of each loop."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise jinja2.TemplateSyntaxError("a recursive loop is not allowed", loop.lineno)
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        return tree

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call an object, and count the call."""
        _count()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, _: object, operator: str, *operands: object) -> NoReturn:
        """Refuse the operator."""
        raise exceptions.SecurityError(f"the operator {operator} is not allowed with {len(operands)} operands")


_ENVIRONMENT = _Environment(
    undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False
)
_ENVIRONMENT.filters[_COUNTED] = functools.partial(map, _count)


def check(source: str, *, names: Collection[str]) -> None:
    """Raise TemplateError if `source` is no template, or reads another variable than `names`."""
    try:
        parsed = _ENVIRONMENT.parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno} of the template: {error.message}") from error
    if unknown := sorted(meta.find_undeclared_variables(parsed) - set(names)):
        raise TemplateError(f"the template reads {unknown[0]}, and there are {', '.join(names)}")


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


def render(source: str, values: Mapping[str, Any], *, limit: int) -> str:
    """Return the text of a template; of a longer one than `limit` characters the first `limit` + 1.

    Raises TemplateError.
    """
    size, parts = 0, []
    _steps.set(itertools.count())
    try:
        for part in _compiled(source).generate(values):
            parts.append(part)
            size += len(part)
            if size > limit:
                break
    except jinja2.UndefinedError as error:
        raise TemplateError(f"the template reads what is not there: {error.message}") from error
    except _StepsError as error:
        raise TemplateError(f"the template has more than {STEPS_MAX} rounds of loops and calls") from error
    except Exception as error:  # a filter raises what it likes, and its message may quote a value
        raise TemplateError(f"the template fails: {type(error).__name__}") from error
    return "".join(parts)[: limit + 1]
