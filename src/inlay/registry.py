"""Finds methods and tasks by name, lazily: in the package, from entry points, or registered in a notebook.

A module in `inlay.methods` is a method of the same name, one in `inlay.tasks` a task. Another package declares an entry
point in the group `inlay.methods` or `inlay.tasks`; a notebook uses `@inlay.method("name")` or `@inlay.task("name")`.
Nothing is imported before it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

from inlay.errors import SpecError, suggest

C = TypeVar("C", bound=type)


class Registry:
    """Classes of one kind by name, found in a package, in entry points, or added by hand."""

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[Any]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """A decorator that registers a class under this name."""

        def add(cls: C) -> C:
            owner = f"{self.package}.{name}"
            other = self._classes.get(name)
            if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise SpecError(f"the {self.kind} name {name!r} is taken by {other.__module__}.{other.__qualname__}")
            if cls.__module__ != owner and name in self._modules():
                raise SpecError(f"the {self.kind} name {name!r} is taken by {owner}")
            _refuse_hiding(cls)
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return add

    def find(self, name: str) -> type[Any]:
        """The class of this name; an error names the nearest ones."""
        if name not in self._classes:
            if name in self._modules():
                importlib.import_module(f"{self.package}.{name}")
            else:
                self._load_entry_point(name)
        if name not in self._classes:
            raise self._unknown(name)
        return self._classes[name]

    def check(self, name: str) -> None:
        """Refuse an unknown name, without importing any class."""
        if name not in self.names():
            raise self._unknown(name)

    def names(self) -> list[str]:
        """All names, without importing any class."""
        return sorted(self._modules() | self.outside() | set(self._classes))

    def own_names(self) -> list[str]:
        """The names of this package."""
        return sorted(self._modules())

    def outside(self) -> set[str]:
        """The names that other packages declare."""
        return {point.name for point in importlib.metadata.entry_points(group=self.package)}

    def _unknown(self, name: str) -> SpecError:
        return SpecError(f"unknown {self.kind} {name!r}. {suggest(name, self.names())}")

    def _modules(self) -> set[str]:
        package = importlib.util.find_spec(self.package)  # unlike an import, it runs nothing: tasks import torch
        folders = package.submodule_search_locations if package is not None else None
        return {m.name for m in pkgutil.iter_modules(folders) if not m.name.startswith("_")} if folders else set()

    def _load_entry_point(self, name: str) -> None:
        for point in importlib.metadata.entry_points(group=self.package, name=name):
            try:
                cls = point.load()
            except Exception as error:
                raise SpecError(f"the {self.kind} {name!r} ({point.value}) cannot be imported: {error}") from error
            self.register(name)(cls)


def _refuse_hiding(cls: type[Any]) -> None:
    """Refuse an option that would hide an attribute of a base class."""
    options = _options(cls)
    for base in cls.__mro__[1:-1]:
        for name in sorted(options & {*vars(base), *inspect.get_annotations(base)} - _options(base)):
            raise SpecError(f"the option {name!r} of {cls.__qualname__} hides {base.__name__}.{name}; rename it")


def _options(cls: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()


methods = Registry("method", "inlay.methods")
tasks = Registry("task", "inlay.tasks")
