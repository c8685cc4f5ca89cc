"""A trial: one run of a sweep, with its data, and an id that is a hash of everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inlay.engine.host import Host
from inlay.errors import InlayError, RunError
from inlay.library import defaults
from inlay.library.library import Library
from inlay.registry import methods
from inlay.runs.few import may_begin_by_itself
from inlay.runs.prepare import Known, Prepared, check, read
from inlay.runs.run import Run
from inlay.runs.teacher import prepare_taught
from inlay.sweeps.grid import Setting, Space
from inlay.sweeps.values import in_words

_FILES = ("name", "data", "val", "test", "unlabelled", "format", "encoding")
"""Not part of a trial's identity: the rows themselves are."""
_TRAINING = frozenset(
    (
        "name method head pool lr epochs max_steps batch_size warmup weight_decay decay clip dropout "
        "attention_dropout head_dropout schedule eval_every patience pretrain_epochs pretrain_lr pretrain_batch_size "
        "choose_by few_shot_steps few_shot_temperature"
    ).split()
)
"""Settings that do not change rows: runs that differ only in them read the data once."""


@dataclass(frozen=True)
class Trial:
    """A run, made or still to be made."""

    id: str
    label: str
    """What varies, in words."""
    setting: Setting
    seed: int
    data: Prepared
    number: int | None = None
    """The trial of a search that it belongs to; all its seeds share it."""


class Data:
    """The data of all trials: each file is read once, and encoded once for every way of splitting it."""

    def __init__(self, host: Host, library: Library | None = None):
        self.host, self.library = host, library
        self._known: dict[str, Known] = {}
        self._prepared: dict[tuple[str, int | None], Prepared] = {}
        """Also by the seed, where it decides which rows to train on."""

    def prepare(self, run: Run) -> Prepared:
        """A run's data, shared with all runs on the same rows."""
        settings = run.model_dump(exclude={"data", "seed", *_TRAINING})  # all have the same data
        method = check(run, self.host)
        folds = may_begin_by_itself(run) and not method.retunes  # rows are split in another way then
        key = json.dumps([settings, folds], sort_keys=True)
        if not self._read(run, key).is_split(run):
            run = run.model_copy(update={"split_seed": None})  # it has no effect
        for seed in (None, run.seed):
            if (prepared := self._prepared.get((key, seed))) is not None:
                return replace(prepared, run=run, method=method)
        prepared = prepare_taught(run, self.host, self.library, lambda run: self._read(run, key))
        self._prepared[key, run.seed if self._known[key].is_split_by_seed(run) else None] = prepared
        return prepared

    def _read(self, run: Run, key: str) -> Known:
        if key not in self._known:
            self._known[key] = read(run)
        return self._known[key]


class Trials:
    """Makes trials of settings."""

    def __init__(
        self,
        host: Host,
        space: Space,
        name: str,
        seeds: Sequence[int],
        library: Library | None = None,
        one_split: bool = False,
    ):
        """
        Args:
            library: where teachers are.
            one_split: whether all runs hold out the same rows, whatever their seed.
        """
        self.host, self.space, self.name, self.seeds = host, space, name, seeds
        split_seed = space.given.get("split_seed")
        self.shared = {"split_seed": seeds[0] if split_seed is None else split_seed, "folds": 0} if one_split else {}
        self.data = Data(host, library)

    def make(self, setting: Setting, seed: int, number: int | None = None) -> Trial:
        """A trial, its data read."""
        data = self.data.prepare(self.space.run(setting, seed=seed, name=self.name, **self.shared))
        return Trial(identity(data, self.host), self._label(setting, seed, number), setting, seed, data, number)

    def all(self, settings: Sequence[Setting]) -> list[Trial]:
        """Every setting with every seed; one error lists all problems."""
        trials: list[Trial] = []
        problems: dict[str, None] = {}
        for setting in settings:
            for seed in self.seeds:
                try:
                    trials.append(self.make(setting, seed))
                except InlayError as error:
                    problems[str(error)] = None
        if problems:
            raise RunError("; ".join(problems))
        return trials

    def _label(self, setting: Setting, seed: int, number: int | None) -> str:
        words = [in_words(setting, self.space.keys), f"seed={seed}" if len(self.seeds) > 1 else ""]
        label = " ".join(filter(None, words)) or self.name
        return label if number is None else f"#{number} {label}"


def identity(data: Prepared, host: Host) -> str:
    """A hash of all settings, of the rows and of the base. It stays the same when Inlay gets another setting."""
    values = data.run.model_dump(exclude={"data"})
    before = {key: defaults.LATER.get(key, field.default) for key, field in Run.model_fields.items()}
    later = {key: value for key, value in values.items() if key not in defaults.RUN and value != before[key]}
    settings = {key: values.get(key, value) for key, value in defaults.RUN.items()} | later
    settings = {key: value for key, value in settings.items() if key not in _FILES}
    if settings.get("split_seed") == data.run.seed:  # the same as none
        del settings["split_seed"]
    settings["method"] = defaults.against_first(methods, data.method)
    base = (host.base.identity(True), host.base.form or "", str(host.base.dtype))
    teacher = {"teacher": data.teacher} if data.teacher else {}
    return digest({"settings": settings, "data": data.data_hash, "base": base, **teacher})


def digest(value: Mapping[str, Any]) -> str:
    """A short hash of JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()
