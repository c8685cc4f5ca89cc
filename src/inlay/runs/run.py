"""A run: everything that decides what one training gives, as one frozen, checked record.

The same fields are the options of `inlay train`, the keys of a manifest and the arguments of `inlay.Run`. A run and a
base determine the result, up to the rounding of matrix products.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from inlay.data.split import is_size
from inlay.errors import LibraryError, RunError, suggest
from inlay.library import defaults

Size = int | float | str
_ELSEWHERE = {
    "lr": "learning_rate peak_lr max_lr",
    "epochs": "n_epochs num_epochs num_train_epochs max_epochs epoch",
    "batch_size": "bs n_batch per_device_train_batch_size train_batch_size",
    "max_steps": "steps num_steps max_train_steps",
    "max_length": "max_len max_seq_length max_seq_len max_tokens",
    "warmup": "warmup_ratio warmup_steps",
    "schedule": "lr_scheduler_type lr_scheduler scheduler",
    "head_dropout": "classifier_dropout",
    "weight_decay": "wd l2",
    "clip": "max_grad_norm grad_clip gradient_clip_val",
    "eval_every": "eval_steps eval_interval",
    "patience": "early_stopping early_stopping_patience",
    "metric": "metric_for_best_model",
    "seed": "random_state random_seed",
    "data": "dataset train train_file train_data file path",
    "val": "validation validation_file valid dev eval_file",
    "test": "test_file",
    "text": "text_column",
    "label": "label_column target",
    "pool": "pooling",
    "method": "adapter adapter_config peft_config",
}
ELSEWHERE: Mapping[str, str] = {word: name for name, words in _ELSEWHERE.items() for word in words.split()}
"""Names of settings in other libraries -> their names here."""


class Run(BaseModel):
    """The settings of one adapter's training."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    data: str | list[dict[str, Any]] = Field(description="a file, a folder with splits, a hub dataset, or rows")
    name: str = Field("", description="the name of the adapter")
    task: str | None = Field(None, description="the task")
    method: str = Field("houlsby", description="the method")
    head: str = Field("linear", description="the head")
    pool: str = Field("auto", description="how tokens are pooled for the head")
    text: str | None = Field(
        None, description="the column with the text (tagging: words; qa: question); subject,body joins two columns"
    )
    pair: str | None = Field(None, description="the column with the second text (qa: context)")
    label: str | None = Field(
        None,
        description="the column with the label (tagging: tags; qa: answers); a,b,c names several columns of 0 and 1",
    )
    format: str | None = Field(None, description="the format of the data")
    encoding: str | None = Field(None, description="the encoding of the data")
    val: str | None = Field(None, description="a file with validation rows")
    val_size: Size | None = Field(None, description="hold out this many rows, or this share, for validation")
    test: str | None = Field(None, description="a file of test rows")
    test_size: Size | None = Field(
        None, description="hold out this many rows, or this share, for testing: the same rows for every seed"
    )
    train_size: Size | None = Field(None, description="train on only this many rows, or this share")
    stratify: bool = Field(True, description="keep the proportions of the classes when rows are drawn")
    lr: float | None = Field(None, gt=0, description="the peak learning rate")
    epochs: int | None = Field(None, ge=0, description="passes over the data")
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps")
    batch_size: int = Field(16, ge=1, description="rows per step")
    max_length: int | None = Field(None, ge=4, description="the longest row, in tokens")
    long: Literal["cut", "windows"] = Field(
        "cut",
        description="what to do with texts that are too long: cut them, or read them in windows and average the scores",
    )
    warmup: float = Field(0.1, ge=0, lt=1, description="the share of steps spent warming up the learning rate")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="what the learning rate does after warming up: fall to zero (linear), or stay (constant)"
    )
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay")
    decay: Literal["difference", "weights"] = Field(
        "difference", description="what weight decay shrinks: the difference from the base, or (finetune) the weights"
    )
    clip: float | None = Field(1.0, gt=0, description="clip the gradient norm of each run at this value")
    dropout: bool = Field(True, description="use the base's dropout while training")
    attention_dropout: bool = Field(
        False, description="drop attention probabilities too, as the base was pretrained; slower"
    )
    head_dropout: float | None = Field(None, ge=0, lt=1, description="the dropout in front of the head")
    class_weights: bool = Field(False, description="give rare classes more weight")
    eval_every: int | None = Field(None, ge=1, description="evaluate every N steps")
    patience: int | None = Field(None, ge=1, description="stop after N evaluations without improvement")
    choose_by: Literal["score", "loss", "last"] | None = Field(
        None, description="which state is kept: the best by validation score or by loss, or the last one"
    )
    metric: str | None = Field(None, description="the metric that picks the best checkpoint")
    seed: int = Field(0, ge=0, description="the seed for initial weights, row order, dropout and splits")
    split_seed: int | None = Field(None, ge=0, description="the seed for splits alone")
    pretrain_on_text: bool = Field(False, description="first train on the texts alone, with masked words (TAPT)")
    pretrain_epochs: int = Field(3, ge=1, description="passes over the texts in pretraining")
    pretrain_lr: float | None = Field(None, gt=0, description="the peak learning rate of pretraining")
    pretrain_batch_size: int | None = Field(None, ge=1, description="rows per step of pretraining")
    few_shot: bool | None = Field(
        None,
        description="classification: first pull texts of a class together, then fit the head by logistic regression",
    )
    few_shot_steps: int | None = Field(None, ge=1, description="steps that pull texts of the same class together")
    few_shot_temperature: float = Field(
        0.1, gt=0, description="the temperature of these steps, by which similarities are divided"
    )
    folds: int | None = Field(
        None, ge=0, description="score by N folds, then train on all rows; 0 holds rows out for validation instead"
    )
    fold: str | None = Field(None, description="leave out one part of the rows: 2/5 is the second of five")
    teacher: str | None = Field(
        None,
        description="also learn from the answers of an ensemble or an adapter in the library",
    )
    unlabelled: str | None = Field(None, description="a file of texts that the teacher labels")
    skip_bad_rows: bool = Field(False, description="skip rows that cannot be used, and count them")

    @field_validator("folds")
    @classmethod
    def _check_folds(cls, folds: int | None) -> int | None:
        if folds == 1:
            raise ValueError("expected at least 2, or 0 for none")
        return folds

    @field_validator("val_size", "test_size", "train_size")
    @classmethod
    def _check_size(cls, size: Size | None) -> Size | None:
        if size is not None and not is_size(size):
            raise ValueError("expected a number of rows such as 1000, or a share such as 10%")
        return size

    @field_validator("fold")
    @classmethod
    def _check_fold(cls, fold: str | None) -> str | None:
        match = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", fold or "", re.ASCII)
        if fold is not None and (match is None or int(match[1]) > int(match[2]) or int(match[2]) < 2):
            raise ValueError("expected K/N with K up to N, and N at least 2")
        return fold

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __init__(self, **values: Any):
            try:
                super().__init__(**values)
            except ValidationError as error:
                # one problem for each setting, where several types are allowed
                first = {problem["loc"][:1]: problem for problem in reversed(error.errors())}
                raise RunError("; ".join(_problem(problem) for problem in reversed(first.values()))) from None

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        return self.config().items()

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        from inlay.library.library import check_name

        try:
            return check_name(name) if name else name
        except LibraryError as error:  # now, and not when the adapter is trained and cannot be kept
            raise ValueError(str(error)) from None

    @property
    def splits_by(self) -> int:
        """The seed that decides which rows are held out."""
        return self.seed if self.split_seed is None else self.split_seed

    def config(self) -> dict[str, Any]:
        """What differs from the defaults: enough to run it again. Rows given as objects are left out."""
        return self._without_rows(self.model_dump(exclude_defaults=True))

    def written(self) -> dict[str, Any]:
        """What differs from the first defaults: files keep this, and `from_config` reads it under any defaults."""
        return self._without_rows(defaults.settings(self.model_dump()))

    def _without_rows(self, kept: dict[str, Any]) -> dict[str, Any]:
        return kept if isinstance(self.data, str) else {**kept, "data": f"{len(self.data)} rows given as objects"}


def from_config(config: Mapping[str, Any], where: str = "", **changes: Any) -> Run:
    """The run whose settings were written down by `Run.written`, today or by an older version."""
    return make_run({**defaults.restated(config), **changes}, where)


def make_run(values: dict[str, Any], where: str = "") -> Run:
    """A run from plain values; one error names everything that is wrong."""
    try:
        return Run(**values)
    except RunError as error:
        raise RunError(f"{where}: {error}" if where else str(error)) from None


def _problem(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"][:1])
    if problem["type"] == "extra_forbidden":
        if key.lower() in ELSEWHERE:
            return f"unknown setting {key!r}. Did you mean {ELSEWHERE[key.lower()]}?"
        return f"unknown setting {key!r}. {suggest(key, Run.model_fields)}"
    if problem["type"] == "missing":
        return f"{key!r} is missing"
    value = repr(problem["input"])
    shown = value if len(value) <= 60 else f"{value[:57]}..."
    expected = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{key}={shown} is not valid: {expected}"


def data_name(data: str) -> str:
    """A name for an adapter from its data: `reviews/train.csv` -> `reviews`."""
    path = Path(data)
    stem = path.name.partition(".")[0] if path.suffix else path.name
    stem = path.parent.name if stem in ("train", "data") and path.parent.name else stem
    return re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-")[:100] or "task"
