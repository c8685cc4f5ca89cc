"""A run: everything that decides what one training gives, as one frozen, checked record.

The same fields are the options of `inlay train`, the keys of a manifest and the arguments of `inlay.Run`. A run and a
base determine the result, up to the rounding of matrix products.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from inlay.errors import LibraryError, RunError, suggest

Size = int | float | str


class Run(BaseModel):
    """One adapter to be trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    data: str | list[dict[str, Any]] = Field(description="a file, a folder with splits, a hub dataset, or rows")
    name: str = Field("", description="what the adapter is called")
    task: str | None = Field(None, description="classification, multilabel, regression, tagging, qa or mlm; guessed")
    method: str = Field("houlsby", description="a spec such as houlsby:size=64")
    head: str = Field("linear", description="linear, tanh2, mlp or relu2")
    pool: str = Field("auto", description="auto, cls, mean, last or pooler")
    text: str | None = Field(
        None, description="the column of the text (tagging: words; qa: question); several are joined: subject,body"
    )
    pair: str | None = Field(None, description="the column of the second text (qa: context)")
    label: str | None = Field(
        None, description="the column of the label (tagging: tags; qa: answers); several of 0 and 1: toxic,threat"
    )
    format: str | None = Field(None, description="how to read the files, if their names do not say")
    encoding: str | None = Field(None, description="text encoding, if it is not UTF-8")
    val: str | None = Field(None, description="a file of validation rows")
    val_size: Size | None = Field(None, description="how many rows to hold out: 500 or 10%")
    test: str | None = Field(None, description="a file of test rows")
    train_size: Size | None = Field(None, description="train on so many rows only: 1000 or 10%")
    stratify: bool = Field(True, description="keep the shares of the classes when rows are drawn")
    lr: float | None = Field(None, gt=0, description="peak learning rate; the method's own by default")
    epochs: int | None = Field(None, ge=1, description="passes over the data; 5 by default, more for under 400 steps")
    max_steps: int | None = Field(None, ge=1, description="stop after so many steps")
    batch_size: int = Field(16, ge=1, description="rows per step")
    max_length: int | None = Field(None, ge=4, description="longest row in tokens")
    long: Literal["cut", "windows"] = Field("cut", description="texts that are longer: cut, or pool windows")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay")
    decay: Literal["difference", "weights"] = Field(
        "difference", description="what decays: the difference from the base, or (finetune) the weights themselves"
    )
    clip: float | None = Field(1.0, gt=0, description="largest norm of a run's gradient")
    dropout: bool = Field(True, description="the base's own dropout while training")
    class_weights: bool = Field(False, description="weigh classes by how rare they are")
    eval_every: int | None = Field(None, ge=1, description="evaluate every so many steps instead of every epoch")
    patience: int | None = Field(None, ge=1, description="stop after so many evaluations without a better one")
    metric: str | None = Field(None, description="the metric that decides; the task's own by default")
    seed: int = Field(0, ge=0, description="start values, data order, dropout and splits")
    pretrain_on_text: bool = Field(False, description="first train on the texts alone, with masked words (TAPT)")
    pretrain_epochs: int = Field(3, ge=1, description="passes over the texts")
    skip_bad_rows: bool = Field(False, description="count rows that cannot be used instead of stopping")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        from inlay.library.library import check_name

        try:
            return check_name(name) if name else name
        except LibraryError as error:  # now, and not when the adapter is trained and cannot be kept
            raise ValueError(str(error)) from None

    def config(self) -> dict[str, Any]:
        """What differs from the defaults: enough to run it again. Rows given as objects are left out."""
        kept = self.model_dump(exclude_defaults=True)
        if not isinstance(self.data, str):
            kept["data"] = f"{len(self.data)} rows given as objects"
        return kept


def make_run(values: dict[str, Any], where: str = "") -> Run:
    """A run from plain values; one error names everything that is wrong."""
    try:
        return Run(**values)
    except ValidationError as error:
        prefix = f"{where}: " if where else ""
        first = {one["loc"][:1]: one for one in reversed(error.errors())}  # one for each, where several types may be
        raise RunError(prefix + "; ".join(_problem(one) for one in reversed(first.values()))) from None


def run_of_card(config: Mapping[str, Any], where: str = "") -> Run:
    """The run that a card's settings tell of; without epochs it dates from when 5 was the default."""
    return make_run({"epochs": 5, **config}, where)


def _problem(one: Any) -> str:
    key = ".".join(str(part) for part in one["loc"][:1])
    if one["type"] == "extra_forbidden":
        return f"there is no setting {key!r}: {suggest(key, Run.model_fields)}"
    if one["type"] == "missing":
        return f"{key!r} is missing"
    given = repr(one["input"])
    shown = given if len(given) <= 60 else f"{given[:57]}..."
    said = one["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{key}={shown} is not valid: {said}"


def data_name(data: str) -> str:
    """A name for an adapter from its data: `reviews/train.csv` -> `reviews`."""
    path = Path(data)
    stem = path.name.partition(".")[0] if path.suffix else path.name
    stem = path.parent.name if stem in ("train", "data") and path.parent.name else stem
    return re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-")[:100] or "task"
