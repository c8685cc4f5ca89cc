"""Options that several commands have in common, handed to a command as one argument.

A group is declared once; `@expand_groups(how=GROUP)` replaces the command's parameter `how` by its options, and
calls the command with what the group makes of their values. A NamedTuple whose fields are declared as options is a
group, too.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class OptionGroup(Protocol):
    """Several options, and the object that is made of their values."""

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter for each, as Typer reads them."""

    def made(self, values: Mapping[str, Any]) -> Any:
        """What the command gets for their values."""


class _Fields:
    """The fields of a NamedTuple as options; the command gets the tuple."""

    def __init__(self, kind: Any):
        self.kind = kind

    def parameters(self) -> list[inspect.Parameter]:
        """One for each field, with its annotation and default."""
        hints, defaults = typing.get_type_hints(self.kind, include_extras=True), self.kind._field_defaults
        return [parameter(name, hints[name], defaults[name]) for name in self.kind._fields]

    def made(self, values: Mapping[str, Any]) -> Any:
        """The tuple."""
        return self.kind(**values)


def parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter of a command, by keyword."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def expand_groups(**kinds: OptionGroup | type[tuple[Any, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameters named here by the options of their groups."""
    groups: dict[str, OptionGroup] = {
        key: _Fields(kind) if isinstance(kind, type) else kind for key, kind in kinds.items()
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        ungrouped = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in groups]
        names = {key: [p.name for p in group.parameters()] for key, group in groups.items()}

        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            made = {
                key: group.made({name: arguments.pop(name) for name in names[key]}) for key, group in groups.items()
            }
            command(**arguments, **made)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in ungrouped]
        parameters += [p for group in groups.values() for p in group.parameters()]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate
