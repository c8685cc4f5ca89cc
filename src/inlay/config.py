"""The spec grammar: `name:key=value,key=value`, the same in CLI, files, cards and API.

Options are the fields of a frozen dataclass, so that a method declares name, type, default and meaning
once. `parse` turns text into such an object, `canonical` turns it back into the shortest text that parses
to an equal object.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from inlay.errors import SpecError, suggest

T = TypeVar("T")

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option as `inlay info` shows it."""

    name: str
    type: str
    default: str
    help: str


@dataclasses.dataclass(frozen=True)
class Range:
    """Which numbers an option may have; a bound that is infinite does not count."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __str__(self) -> str:
        least, above, most, below = map(text_of, (self.at_least, self.above, self.at_most, self.below))
        has_least = self.at_least > -math.inf
        if self.below < math.inf:
            return f"{least} to below {below}" if has_least else f"between {above} and {below}"
        return (f"{least} or more" if has_least else f"more than {above}") + f", up to {most}" * (
            self.at_most < math.inf
        )


def option(default: Any, help: str, **within: float) -> Any:
    """A dataclass field with a line of help.

    Args:
        within: the arguments of `Range`: which numbers the option may have.
    """
    return dataclasses.field(default=default, metadata={"help": help, "within": Range(**within) if within else None})


def refuse_out_of_range(name: str, options: Any) -> None:
    """Refuse the first number that is not in the range its option declares."""
    for field in dataclasses.fields(options):
        value, within = getattr(options, field.name), field.metadata.get("within")
        if within is not None and value is not None and value not in within:
            raise SpecError(f"{name}: {field.name}={value} is not valid: expected {within}")


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """`lora:rank=4,alpha=8` -> ("lora", {"rank": "4", "alpha": "8"})."""
    name, colon, rest = text.strip().partition(":")
    if not name.strip():
        raise SpecError(f"{text!r} names no method; a spec is name:key=value,key=value")
    if "," in name:
        raise SpecError(f"{name.partition(',')[2].strip()!r} in {text!r} is neither a method nor key=value")
    if colon and not rest.strip():
        raise SpecError(f"{text!r} ends with a colon; a spec is name:key=value,key=value")
    options: dict[str, str] = {}
    for item in rest.split(",") if rest.strip() else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise SpecError(f"{item.strip()!r} in {text!r} is not key=value")
        if key in options:
            raise SpecError(f"option {key!r} is given twice in {text!r}")
        options[key] = value
    return name.strip(), options


def split_list(text: str, names: Iterable[str]) -> list[str]:
    """Split a comma-separated list of specs; a comma starts a new spec only before one of `names`."""
    names = set(names)
    specs: list[str] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        if item.partition(":")[0].strip() in names or not specs:
            specs.append(item)
        else:
            specs[-1] += f",{item}"
    return specs


def build(cls: type[T], name: str, texts: dict[str, str]) -> T:
    """Make the options dataclass `cls` from strings; every wrong key or value is named."""
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    values, problems = {}, []
    for key, text in texts.items():
        if key not in fields:
            problems.append(f"{name} has no option {key!r}. {suggest(key, fields)}")
            continue
        try:
            values[key] = _value(text, hints[key])
        except ValueError as error:
            link = ":" if str(error).startswith("expected") else "."
            problems.append(f"{name}: {key}={text} is not valid{link} {error}")
    if problems:
        raise SpecError("; ".join(problems))
    return cls(**values)


def canonical(name: str, options: Any, defaults: Mapping[str, Any] | None = None) -> str:
    """The shortest spec: only what differs from the defaults, in the order of declaration.

    Args:
        defaults: other defaults than those that the options have today.
    """
    parts = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        default = field.default if defaults is None else defaults.get(field.name, field.default)
        if field.init and value != default:
            parts.append(f"{field.name}={text_of(value)}")
    return f"{name}:{','.join(parts)}" if parts else name


def full(name: str, options: Any) -> str:
    """The spec with every option, whatever the defaults are."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.init}
    option_texts = texts(type(options), values)
    return f"{name}:{','.join(f'{key}={text}' for key, text in option_texts.items())}" if option_texts else name


def texts(cls: type[Any], values: Mapping[str, Any]) -> dict[str, str]:
    """Options as in a spec, without unknown options and values that a spec cannot express."""
    hints = _hints(cls)
    names = {field.name for field in dataclasses.fields(cls) if field.init}
    option_texts = {key: text_of(value) for key, value in values.items() if key in names}
    return {key: text for key, text in option_texts.items() if _says(text, hints[key], values[key])}


def _says(text: str, hint: Any, value: Any) -> bool:
    if not text or "," in text or text != text.strip():
        return False
    try:
        return bool(_value(text, hint) == value)
    except (ValueError, KeyError):
        return False


_HINTS: weakref.WeakKeyDictionary[type[Any], dict[str, Any]] = weakref.WeakKeyDictionary()


def _hints(cls: type[Any]) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def describe(cls: type[Any]) -> list[Option]:
    """The options of a dataclass, as text for people."""
    hints = _hints(cls)
    return [
        Option(f.name, _type_name(hints[f.name]), text_of(f.default), f.metadata.get("help", ""))
        for f in dataclasses.fields(cls)
        if f.init
    ]


def text_of(value: object) -> str:
    """A value as in a spec."""
    if value is None:
        return "auto"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_name(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if origin in (typing.Union, types.UnionType):
        return "|".join("auto" if a is type(None) else _type_name(a) for a in typing.get_args(hint))
    return str(getattr(hint, "__name__", hint))


def _value(text: str, hint: Any) -> Any:
    """Read one value; ValueError says what was expected."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        choices = {str(choice): choice for choice in typing.get_args(hint)}
        if text not in choices:
            raise ValueError(suggest(text, choices))
        return choices[text]
    if origin in (typing.Union, types.UnionType):
        return _first(text, typing.get_args(hint))
    if hint is type(None):
        if text != "auto":
            raise ValueError("expected auto")
        return None
    if hint is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError("expected true or false")
        return text.lower() in _TRUE
    readers: dict[Any, tuple[Callable[[str], Any], str]] = {
        int: (int, "a whole number"),
        float: (float, "a number"),
        str: (str, "text"),
    }
    read, expected = readers[hint]
    try:
        value = read(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None
    if hint is float and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _first(text: str, hints: tuple[Any, ...]) -> Any:
    problems = []
    for hint in hints:
        try:
            return _value(text, hint)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError(", or ".join(problems))
