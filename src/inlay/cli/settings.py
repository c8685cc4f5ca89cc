"""The settings of a run as options: the same for every command that trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer


def _number_or_none(text: str) -> float:
    """A number; `none` is one that nothing exceeds, as `given` knows."""
    return math.inf if text == "none" else float(text)


Task = Annotated[
    str | None,
    typer.Option(metavar="T", help="classification, multilabel, regression, tagging, qa, mlm.  [default: guessed]"),
]
Method = Annotated[str | None, typer.Option(metavar="SPEC", help="For example houlsby:size=64.")]
Head = Annotated[str | None, typer.Option(metavar="H", help="linear, tanh2, mlp or relu2.")]
Pool = Annotated[str | None, typer.Option(metavar="P", help="auto, cls, mean, last or pooler.")]
Val = Annotated[str | None, typer.Option(metavar="F", help="A file of validation rows.")]
ValSize = Annotated[str | None, typer.Option(metavar="N|P%", help="Rows to hold out.  [default: 10%]")]
Test = Annotated[str | None, typer.Option(metavar="F", help="A file of test rows.")]
TrainSize = Annotated[str | None, typer.Option(metavar="N|P%", help="Train on so many rows only.")]
Plain = Annotated[bool, typer.Option("--plain", help="Draw rows without regard to their classes.")]
Lr = Annotated[float | None, typer.Option(metavar="X", help="Peak learning rate.  [default: the method's]")]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Passes over the data.  [default: 5]")]
MaxSteps = Annotated[int | None, typer.Option(metavar="N", help="Stop after so many steps.")]
BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Rows per step.  [default: 16]")]
MaxLength = Annotated[int | None, typer.Option(metavar="N", help="Longest row in tokens.")]
Long = Annotated[str | None, typer.Option(metavar="HOW", help="Longer texts: cut, or windows with pooled scores.")]
Warmup = Annotated[float | None, typer.Option(metavar="X", help="Share of rising steps.  [default: 0.1]")]
WeightDecay = Annotated[float | None, typer.Option(metavar="X", help="Decoupled weight decay.")]
Decay = Annotated[str | None, typer.Option(metavar="WHAT", help="What decays: difference, or (finetune) weights.")]
Clip = Annotated[
    float | None,
    typer.Option(parser=_number_or_none, metavar="X", help="Largest gradient norm, or none.  [default: 1]"),
]
NoDropout = Annotated[bool, typer.Option("--no-dropout", help="Train without the base's dropout.")]
ClassWeights = Annotated[bool, typer.Option("--class-weights", help="Weigh rare classes more.")]
EvalEvery = Annotated[int | None, typer.Option(metavar="N", help="Evaluate every N steps.")]
Patience = Annotated[int | None, typer.Option(metavar="N", help="Stop after N evaluations without a best.")]
Metric = Annotated[str | None, typer.Option(metavar="M", help="The metric that decides.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Start, order, dropout, splits.  [default: 0]")]
PretrainOnText = Annotated[
    bool, typer.Option("--pretrain-on-text", help="First train on the texts alone, with masked words.")
]
PretrainEpochs = Annotated[int | None, typer.Option(metavar="N", help="Passes over the texts.  [default: 3]")]
Slots = Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at once.  [default: what fits]")]
Compile = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Compile layers (CUDA).  [default: if it pays]")
]
SaveEvery = Annotated[float, typer.Option(min=0, metavar="S", help="Seconds between checkpoints.")]
Log = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND:WHERE", help="jsonl:F, tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT."),
]

_FLAGS = {
    "class_weights": ("class_weights", True),
    "pretrain_on_text": ("pretrain_on_text", True),
    "skip_bad_rows": ("skip_bad_rows", True),
    "plain": ("stratify", False),
    "no_dropout": ("dropout", False),
}
"""A flag of the command line -> the setting it changes, and to what."""
_SETTINGS = frozenset(
    (
        "task method head pool text pair label format encoding val val_size test train_size lr epochs "
        "max_steps batch_size max_length long warmup weight_decay decay clip eval_every patience metric seed "
        "pretrain_epochs "
    ).split()
)


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that somebody has given, out of all arguments of a command."""
    found = {key: value for key, value in arguments.items() if key in _SETTINGS and value is not None}
    found |= {"clip": None} if found.get("clip") == math.inf else {}
    return found | dict(setting for flag, setting in _FLAGS.items() if arguments.get(flag))


def option(setting: str) -> str:
    """How a setting is given on the command line: `--batch-size`."""
    name = {"stratify": "plain", "dropout": "no-dropout"}.get(setting, setting.replace("_", "-"))
    return f"--{name}"
