"""How help looks and how a command ends: options in panels, common ones first; examples below; one line for an error.

A command's docstring is its help; lines after `Examples:` are shown as they are. More than a dozen options are shown
in panels. Plain text, since rich takes longer to import than all the rest of help.
"""

from __future__ import annotations

import errno
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import Default

from inlay.cli.allocator import keep_memory
from inlay.cli.output import quiet
from inlay.errors import InlayError
from inlay.untrusted import visible


def argument(metavar: str, help: str, **more: Any) -> Any:
    """A positional argument of a command."""
    return typer.Argument(metavar=metavar, help=help, **more)


class Panel(str):
    """A heading in help; its methods declare the options below it."""

    def option(self, metavar: str, help: str, *, name: str = "", check: Any = None, **more: Any) -> Any:
        """An option, with its parameter's name unless it has another; `check` refuses wrong values."""
        callback = None if check is None else checked(check)
        names = (name,) if name else ()
        return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=self, callback=callback, **more)

    def flag(self, name: str, help: str, **more: Any) -> Any:
        """An option without a value, or two in one: `--tokenizer/--no-tokenizer`."""
        return typer.Option(name, help=help, rich_help_panel=self, **more)


DATA, METHOD, TRAINING, FEW_ROWS, TEXTS_FIRST, RUNNING, OUTPUT, RARE = PANELS = tuple(
    map(Panel, ("Data", "Task and method", "Training", "Few rows", "Texts first", "Running", "Output", "Less common"))
)
F = TypeVar("F", bound=Callable[..., Any])
_RANGE = re.compile(r"([-\d.]+<=?)?x([<>]=?[-\d.]+)?")
_INVALID = re.compile(r"Invalid value(?: for (.+?))?: (.*)", re.DOTALL)
_UsageError: Any = typer.BadParameter.__mro__[1]  # Typer exports only what derives from it
FEW = 12
"""Options that fit in one list; no panel has more."""


class Command(TyperCommand):
    """A command whose help has panels and ends with examples."""

    def __init__(self, name: str | None, *, help: str | None = None, **more: Any):
        text, _, examples = inspect.cleandoc(help or "").partition("\n\nExamples:\n")
        super().__init__(name, help=text, **more)
        self.examples = [line.strip() for line in examples.splitlines()]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the panels."""
        for heading, params in panels(self, ctx).items():
            with formatter.section(heading):
                formatter.write_dl([_record(param, ctx) for param in params])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] NAME [DATA]...`."""
        pieces = [self.options_metavar or ""]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                name = str(param.metavar or param.name).removesuffix("...")
                pieces.append((name if param.required else f"[{name}]") + "..." * (param.nargs != 1))
        return pieces

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one per line however long."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))


def panels(command: TyperCommand, context: Any) -> dict[str, list[Any]]:
    """Heading -> the parameters below it."""
    shown = [param for param in command.get_params(context) if param.get_help_record(context) is not None]
    options = [param for param in shown if param.param_type_name == "option"]
    headings: dict[str, list[Any]] = {"Arguments": [param for param in shown if param not in options]}
    if len(options) <= FEW + 1:  # --help does not count
        headings["Options"] = options
    else:
        for heading in PANELS:
            headings[heading] = [param for param in options if _panel(param) == heading]
    return {heading: params for heading, params in headings.items() if params}


def _record(param: Any, context: Any) -> tuple[str, str]:
    """Left and right of a line; the range of a number is left to error messages."""
    name, text = param.get_help_record(context)
    description, bracket, extra = text.rpartition("[")
    parts = [part for part in extra.removesuffix("]").split("; ") if not _RANGE.fullmatch(part)]
    if bracket and extra.endswith("]"):
        text = f"{description}[{'; '.join(parts)}]" if parts else description.rstrip()
    return (param.metavar or name) if param.param_type_name == "argument" else name, text


def _panel(param: Any) -> str:
    panel = str(getattr(param, "rich_help_panel", None) or "")
    return panel if panel in PANELS else OUTPUT if "--help" in param.opts else DATA


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Any write can find the disk full, which is not a bug."""


class Group(TyperGroup):
    """Commands are listed with their whole first sentence; click would cut it to fit the terminal."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One entry for each."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, c.get_short_help_str(limit=1_000)) for name, c in commands if c])


class Commands(TyperGroup):
    """A group whose commands end with one clear line when they fail."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the options before the command's name."""
        with _one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; only a bug shows a traceback."""
        keep_memory()
        try:
            with quiet(), _one_line():
                return super().invoke(ctx)
        except InlayError as error:
            _tell(str(error))
            raise typer.Exit(1) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            where = f" ({error.filename})" if error.filename else ""
            _tell(f"cannot write: {error.strerror}{where}")
            raise typer.Exit(1) from None


def _tell(message: str) -> None:
    typer.echo(f"error: {visible(' '.join(message.split()))}", err=True)


@contextmanager
def _one_line() -> Iterator[None]:
    """A usage error looks like every other error, with exit code 2."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself
            raise
        _tell(_without_preamble(error.format_message()))
        if error.ctx is not None:
            typer.echo(f"help: {error.ctx.command_path} --help", err=True)
        raise typer.Exit(2) from None


def _without_preamble(message: str) -> str:
    """`Invalid value for '--lr': it is 0.` -> `--lr: it is 0`."""
    match = _INVALID.fullmatch(message)
    if match is None:
        return (message[:1].lower() + message[1:]).removesuffix(".")
    hint = f"{match[1].replace(chr(39), '')}: " if match[1] else ""
    problem = match[2].replace("Input should be", "must be", 1).partition(", unable to parse")[0]
    return (hint + problem.replace("a valid integer", "a whole number")).removesuffix(".")


class App(typer.Typer):
    """Commands that all look and end alike."""

    def __init__(self, help: str = "", cls: type[TyperGroup] = Group):
        super().__init__(
            cls=cls,
            help=help or Default(None),
            add_completion=False,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"max_content_width": 120},
        )

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **more: Any
    ) -> Callable[[F], F]:
        """As Typer's, with our help."""
        return super().command(name, cls=cls or Command, **more)


@contextmanager
def usage(option: str) -> Iterator[None]:
    """An error raised here is about the value of an option: exit code 2, with the option's name."""
    try:
        yield
    except InlayError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def checked(check: Callable[[Any], object]) -> Callable[..., Any]:
    """A callback of an option: a value that `check` refuses, alone or among several, is wrong usage."""

    def callback(param: typer.CallbackParam, value: Any) -> Any:
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            with usage(param.opts[0]):
                check(item)
        return value

    return callback
