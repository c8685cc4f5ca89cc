"""What options may be, checked before anything heavy is imported.

Each check raises an InlayError that suggests the nearest names. Other packages are searched only when a name
is not one of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from inlay import config, metrics, registry
from inlay.errors import SpecError, suggest
from inlay.heads import HEADS, POOLS

FORMATS = ("csv", "tsv", "json", "jsonl", "conll", "conllu", "squad", "glue", "parquet")
"""As `inlay.data.source` has them, which takes a moment to import."""
SHAPES = ("bert-base", "bert-large", "roberta-base", "roberta-large", "xlmr-large", "minilm-l6")
"""As `inlay.base.shapes` has them, which imports torch; so does `inlay.base.load`, which has the next ones."""
WEIGHTS = ("plain", "prepack", "int8", "fp8")
ENGINES = ("local", "ray")
SPLITS = ("train", "validation", "test")


def one_of(kind: str, names: Collection[str]) -> Callable[[str], None]:
    """A check: the name is one of these."""

    def check(name: str) -> None:
        if name not in names:
            raise SpecError(f"unknown {kind} {name!r}. {suggest(name, names)}")

    return check


head = one_of("head", HEADS)
pool = one_of("pooling", POOLS)
data_format = one_of("format", FORMATS)
weights = one_of("form of weights", WEIGHTS)


def weights_to_train(name: str) -> None:
    """A form of weights that can be trained with."""
    weights(name)
    if name not in ("plain", "fp8"):
        raise SpecError(f"{name} is for serving; train with plain or fp8")


def threshold(text: str) -> None:
    """A score, or `uncertainty=0.1`."""
    key, _, number = text.rpartition("=")
    try:
        fits = key in ("", "uncertainty") and float(number) >= 0 and (key != "" or float(number) <= 1)
    except ValueError:
        fits = False
    if not fits:
        raise SpecError(f"{text!r} is not a score between 0 and 1, nor uncertainty=NUMBER")


def method(spec: str) -> None:
    """A method's spec, of which only the name is checked."""
    registry.methods.check(config.split_spec(spec)[0])


def methods(specs: str) -> None:
    """Specs separated by commas."""
    from inlay.sweeps.values import split_specs

    for spec in split_specs(specs, []):
        method(spec)


def task(spec: str) -> None:
    """A task's spec, of which only the name is checked."""
    registry.tasks.check(config.split_spec(spec)[0])


def metric(name: str) -> None:
    """A metric of any task; whether it suits the task is checked later."""
    if not registry.tasks.outside():  # tasks of other packages may have their own metrics
        one_of("metric", {name for each in metrics.OF_TASK.values() for name in each})(name)


def shape(name: str) -> None:
    """A well-known shape, or a folder with a config.json."""
    if not os.path.isdir(name):
        one_of("shape", SHAPES)(name)


def log(spec: str) -> None:
    """A log: its kind, and where it goes."""
    from inlay.tracking.logs import split_log

    split_log(spec)
