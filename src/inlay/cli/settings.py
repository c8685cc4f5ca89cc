"""The settings of a run as options, made from the fields of `Run`: the same for every command that trains."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple

from inlay import registry
from inlay.cli import option_checks
from inlay.cli.help import DATA, FEW_ROWS, METHOD, RARE, TEXTS_FIRST, TRAINING, Panel
from inlay.cli.option_groups import parameter
from inlay.cli.options import either
from inlay.errors import RunError
from inlay.heads import HEADS, POOLS
from inlay.runs.few import FEW_SHOT_BELOW, FEW_SHOT_STEPS, FOLDS
from inlay.runs.length import FEW_TO_VALIDATE, FEWEST_EPOCHS, LEAST_STEPS, MOST_EVALUATIONS
from inlay.runs.run import Run, make_run


class Shown(NamedTuple):
    """How a setting looks as an option."""

    metavar: str = ""
    unset: str = ""
    """What happens without the option, if the default does not say so."""
    names: Collection[str] = ()
    """The possible values, listed in the help."""
    check: Callable[[str], object] | None = None
    """Beyond what `Run` checks."""
    note: str = ""
    """A further sentence of help."""
    off: str = ""
    """What the option does, if it turns something off."""


NONE = "none"
SETTINGS: Mapping[Panel, Mapping[str, Shown]] = {
    DATA: {
        "text": Shown("COLUMN", "guessed"),
        "pair": Shown("COLUMN", "guessed"),
        "label": Shown("COLUMN", "guessed"),
        "val": Shown("FILE", "some rows are held out"),
        "val_size": Shown("N|P%", "10%, at most 2000"),
        "test": Shown("FILE", "none"),
        "test_size": Shown("N|P%", "none"),
        "train_size": Shown("N|P%", "all"),
        "teacher": Shown(
            "NAME", "none", note="For example --teacher tickets, if tickets was trained with --ensemble 5."
        ),
        "unlabelled": Shown("FILE", "none"),
        "skip_bad_rows": Shown(),
    },
    METHOD: {
        "task": Shown("TASK", "guessed from the data", registry.tasks.own_names(), option_checks.task),
        "method": Shown(
            *("SPEC", "", registry.methods.own_names(), option_checks.method),
            "Options follow a colon, as in houlsby:size=64; `inlay info METHOD` lists them.",
        ),
        "head": Shown("HEAD", "", HEADS, option_checks.head),
        "pool": Shown("POOL", "", POOLS, option_checks.pool),
        "metric": Shown("METRIC", "the task's own", (), option_checks.metric),
    },
    TRAINING: {
        "lr": Shown("X", "the method's own; half of it with --few-shot"),
        "epochs": Shown("N", f"{FEWEST_EPOCHS}, or enough for {LEAST_STEPS} steps; 0 with --few-shot"),
        "max_steps": Shown("N", "no limit"),
        "batch_size": Shown("N"),
        "max_length": Shown("N", "the base's limit, at most 512"),
        "warmup": Shown("X"),
        "weight_decay": Shown("X"),
        "class_weights": Shown(),
        "eval_every": Shown("N", f"once an epoch; without --epochs at most {MOST_EVALUATIONS} times"),
        "patience": Shown("N", "never stop early"),
        "seed": Shown("N"),
    },
    FEW_ROWS: {
        "few_shot": Shown(
            "", f"on with fewer than {FEW_SHOT_BELOW} rows and none of --epochs, --max-steps, --eval-every, --patience"
        ),
        "few_shot_steps": Shown("N", str(FEW_SHOT_STEPS)),
        "few_shot_temperature": Shown("X"),
        "folds": Shown("N", f"{FOLDS} with --few-shot and fewer than {FEW_SHOT_BELOW} rows, else 0"),
        "fold": Shown("K/N", "none is left out"),
        "choose_by": Shown(
            "WHAT", f"score; with fewer than {FEW_TO_VALIDATE} validation rows last, or loss with --patience"
        ),
    },
    TEXTS_FIRST: {
        "pretrain_on_text": Shown(),
        "pretrain_epochs": Shown("N"),
        "pretrain_lr": Shown("X", "--lr"),
        "pretrain_batch_size": Shown("N", "--batch-size"),
    },
    RARE: {
        "format": Shown("FORMAT", "detected", option_checks.FORMATS, option_checks.data_format),
        "encoding": Shown("ENCODING", "UTF-8"),
        "stratify": Shown(off="draw rows at random, without keeping class proportions"),
        "long": Shown("HOW"),
        "clip": Shown("X|none"),
        "dropout": Shown(off="train without the base's dropout"),
        "attention_dropout": Shown(),
        "head_dropout": Shown("X", "the base's own"),
        "schedule": Shown("HOW"),
        "decay": Shown("WHAT"),
        "split_seed": Shown("N", "--seed"),
    },
}
"""Panel -> the settings in it. All of `Run` but `data` and `name`, which each command has in its own way."""


class Settings:
    """The settings of a run as a group of options; a command gets a dictionary of those that were given."""

    def __init__(self, only: Collection[str] = (), without: Collection[str] = ()):
        self.names = [
            name for panel in SETTINGS.values() for name in panel if name not in without and (not only or name in only)
        ]

    def parameters(self) -> list[inspect.Parameter]:
        """An option for each setting; a flag for each that is on or off."""
        return [_parameter(panel, name) for panel, names in SETTINGS.items() for name in names if name in self.names]

    def made(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that were given."""
        given = [name for name, value in values.items() if value is not None and (value or not _is_flag(name))]
        return {name: not _default(name) if _is_flag(name) else _read(name, values[name]) for name in given}


def option(setting: str) -> str:
    """How a setting is given on the command line: `--batch-size`, `--no-dropout`."""
    off = setting in Run.model_fields and _default(setting) is True
    return f"--{'no-' * off}{setting.replace('_', '-')}"


def _default(setting: str) -> Any:
    return Run.model_fields[setting].default


def _is_flag(setting: str) -> bool:
    """Whether an option turns it on, or off, and nothing else."""
    return isinstance(_default(setting), bool)


def _parameter(panel: Panel, name: str) -> inspect.Parameter:
    shown, field = SETTINGS[panel][name], Run.model_fields[name]
    text = shown.off or field.description or ""
    listed = f": {either(tuple(shown.names))}" if shown.names else ""
    help_text = f"{text[:1].upper()}{text[1:]}{listed}." + f" {shown.note}" * bool(shown.note)
    if _is_flag(name):
        return parameter(name, Annotated[bool, panel.flag(option(name), help_text)], False)
    number = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    help_text += f"  [default: {shown.unset if field.default is None else number}]"
    if field.annotation == bool | None:  # on, off, or decided by the data
        flags = f"{option(name)}/--no-{name.replace('_', '-')}"
        return parameter(name, Annotated[bool | None, panel.flag(flags, help_text)], None)
    declared = panel.option(shown.metavar, help_text, check=lambda value: _check(name, shown, value))
    kind = str if shown.metavar.endswith(f"|{NONE}") else _type(field.annotation)
    return parameter(name, Annotated[kind | None, declared], None)


def _read(setting: str, value: Any) -> Any:
    """A value as `Run` takes it: `none` turns off what is on by default."""
    return None if value == NONE and _default(setting) is not None else value


def _type(annotation: Any) -> Any:
    """What the command line reads: one of several types is read as text."""
    if typing.get_origin(annotation) is Literal:
        return annotation
    kinds = [kind for kind in typing.get_args(annotation) or (annotation,) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else str


def _check(name: str, shown: Shown, value: Any) -> None:
    """Refuse a wrong value of an option."""
    try:
        make_run({"data": "", name: _read(name, value)})
    except RunError as error:
        raise RunError(str(error).removeprefix(f"{name}={value!r} is not valid: ")) from None
    if shown.check is not None:
        shown.check(str(value))
