"""From a run's settings to rows of token ids: read, choose columns, split, encode; and what people should know."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from inlay.bank.delta import Method, parse
from inlay.base.load import load_tokenizer
from inlay.data import columns as choosing
from inlay.data import describe
from inlay.data.benchmarks import metric_of
from inlay.data.columns import Columns
from inlay.data.digest import digest
from inlay.data.record import Bad, Skipped, several, stop, stop_or_skip
from inlay.data.source import Source
from inlay.engine.class_heads import cannot_leave
from inlay.engine.host import Host
from inlay.engine.predict import row_limit
from inlay.errors import DataError, RunError
from inlay.heads.head import head_part
from inlay.heads.pool import choose as choose_pool
from inlay.library.defaults import RATES
from inlay.methods.bitfit import BitFit
from inlay.methods.diffprune import DiffPrune
from inlay.methods.finetune import Finetune
from inlay.methods.lora import Lora
from inlay.methods.norms import Norms
from inlay.runs.encoded import Encoder, content
from inlay.runs.few import folds_of, is_few_shot, own_rate
from inlay.runs.inputs import SAMPLE, choose_columns, name_of, open_inputs
from inlay.runs.length import settled
from inlay.runs.run import Run
from inlay.runs.splits import for_test, into_folds, split_known
from inlay.tasks import Example, Row, Task, Unusable
from inlay.tasks import parse as parse_task


@dataclass(frozen=True)
class Split:
    """One split, ready to run."""

    examples: list[Example]
    rows: list[Row]
    """Runs with the same data have the same list."""

    @functools.cached_property
    def content(self) -> str:
        """A hash of the examples."""
        return content(self.examples)


@dataclass(frozen=True)
class Prepared:
    """A run's data."""

    run: Run
    method: Method
    task: Task
    columns: Columns
    labels: tuple[str, ...]
    metric: str
    train: Split
    validation: Split
    test: Split | None
    text: Split | None
    """The training texts for masked language modelling, if the run asks for it."""
    weights: list[float] | None
    """Class weights."""
    look: describe.Look
    notes: list[str] = field(default_factory=list)
    data_hash: str = ""
    files: dict[str, Any] = field(default_factory=dict)
    """split -> the digest of its file, where it is one."""
    folds: tuple[tuple[int, ...], ...] = ()
    """The numbers of the examples that each fold is scored on; all are then in `train` and in `validation`."""
    teacher: dict[str, Any] = field(default_factory=dict)
    """What the card says of the teacher of the training rows; see runs/teacher.py."""
    unlabelled: Split | None = None
    """Rows to train on that only the teacher has labelled."""
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # done here so that it also holds for a copy of this with another run
        rows = len(self.train.rows) + (len(self.unlabelled.rows) if self.unlabelled is not None else 0)
        few = is_few_shot(self.run, self.task, self.method, len(self.train.examples))
        run = settled(self.run, rows, len(self.validation.examples), few, len(self.folds))
        run = run.model_copy(update={"teacher": self.teacher["ref"]}) if self.teacher else run
        if run.lr is None and self.method.name in RATES:  # else a file without a rate would mean another one
            run = run.model_copy(update={"lr": own_rate(self.method, few)})
        object.__setattr__(self, "run", run)


@dataclass(frozen=True)
class Known:
    """A run's examples as its files have them: all that is known before a seed splits them."""

    task: Task
    columns: Columns
    labels: tuple[str, ...]
    train: list[Example]
    validation: list[Example]
    """Empty if some of `train` will be held out."""
    test: list[Example]
    hints: Mapping[str, str]
    notes: list[str]
    skipped: list[str]
    """A note on rows that cannot be used."""
    files: dict[str, Any]

    def is_split(self, run: Run) -> bool:
        """Whether a seed decides which rows to train on."""
        return run.fold is None and (not self.validation or run.train_size is not None)

    def is_split_by_seed(self, run: Run) -> bool:
        """Whether another seed of the run trains on other rows."""
        return run.split_seed is None and self.is_split(run)


def read(run: Run) -> Known:
    """Read a run's files, and decide on its task and its columns."""
    sources, notes = open_inputs(run)
    bad: Bad = Skipped() if run.skip_bad_rows else stop_or_skip
    task, columns, note = _task(run, sources["train"])
    notes += [note] if note else []
    notes += [f"{sources['train'].name}: read as {sources['train'].format}"] if task.kind == "tagging" else []
    notes += _drop_unlabelled(run, sources, columns)
    known, held_out, test = (_read(sources.get(part), task, columns, bad) for part in ("train", "validation", "test"))
    if not known:
        raise DataError(f"{name_of(run)}: there are no rows to train on")
    if run.test_size is not None:
        known, test, note = for_test(run, task, known, bool(test))
        notes.append(note)
    labels = task.labels([*known, *held_out])
    skipped = [bad.note] if isinstance(bad, Skipped) and bad.note else []
    files = {split: value for split, source in sources.items() if (value := digest(source.name)) is not None}
    return Known(
        task,
        columns,
        labels,
        train=known,
        validation=held_out,
        test=test,
        hints=sources["train"].hints,
        notes=notes,
        skipped=skipped,
        files=files,
    )


def prepare(run: Run, host: Host, reading: Callable[[Run], Known] = read) -> Prepared:
    """Read and encode everything a run needs; whatever is wrong with it is noticed here.

    Args:
        reading: gives what `read` does, for runs that share it.
    """
    method = check(run, host)
    known = reading(run)
    columns, labels, test = known.columns, known.labels, known.test
    number = folds_of(run, known.task, method, len(known.train), bool(known.validation))
    folds, split_notes = into_folds(run, known.task, known.train, number) if number else ((), [])
    train, validation = known.train, known.train
    if not folds:
        train, validation, split_notes = split_known(run, known.task, known.train, known.validation, len(known.test))
    task = known.task.fit(train)
    notes = [*known.notes, *split_notes, *known.skipped]
    tokenizer, limit = load_tokenizer(host.base), row_limit(host, task.max_length)
    encoder = Encoder(task, tokenizer, labels, limit)
    # another seed splits the same examples in another way
    is_split = not folds and not known.validation and len(train) + len(validation) == len(known.train)
    pool = known.train if is_split else None

    def fixed(rows: list[Row]) -> list[Row]:  # the noise that engine.predict has, so that `eval` gives the same
        return task.draw(rows, tokenizer, torch.Generator().manual_seed(0)) if task.draws else rows

    # nothing is learned from test rows, so they may have labels of their own
    test_split = Split(test, fixed(encoder.rows([replace(e, target=None) for e in test]))) if test else None
    notes += _new_labels(test, labels)
    notes += _stays_here(run, method, task, host)
    held_out = [] if folds else validation
    return Prepared(
        run=run,
        method=method,
        task=task,
        columns=columns,
        labels=labels or ("word",),
        metric=_metric(run, task, known.hints, labels),
        train=Split(train, encoder.rows(train, pool)),
        validation=Split(validation, fixed(encoder.rows(validation, pool))),
        test=test_split,
        text=_texts(run, tokenizer, host, train, pool) if run.pretrain_on_text else None,
        weights=_weights(run, train, labels),
        look=_look(task, train, held_out, test, encoder.lengths(train, pool), limit),
        notes=notes,
        data_hash=content([*train, *held_out, *test]),
        files=known.files,
        folds=folds,
        warnings=_without_effect(run, host, is_few_shot(run, task, method, len(train))),
    )


def _without_effect(run: Run, host: Host, few_shot: bool) -> list[str]:
    """A warning for every setting that was given and does nothing."""
    reason = {}
    if run.attention_dropout and not (run.dropout and host.forward.spec.attention_dropout):
        reason["attention_dropout"] = "this base has none" if run.dropout else "this run has no dropout (--no-dropout)"
    changed = run.config()
    for setting, is_on, why in (
        ("few_shot_", few_shot, "this run is not few-shot (--few-shot)"),
        ("pretrain_", run.pretrain_on_text, "nothing is pretrained (--pretrain-on-text)"),
    ):
        reason |= {name: why for name in changed if name.startswith(setting) and not is_on}
    return [f"{name} (--{name.replace('_', '-')}) does nothing: {why}" for name, why in reason.items()]


def check(run: Run, host: Host) -> Method:
    """The method of a run; an error if this base, or the method, cannot have what the run asks for."""
    method = parse(run.method)
    method.params(host.base.sites)  # refuses what this base cannot have, as the next two do
    head_part(run.head, 1, host.base.sites.hidden)
    choose_pool(run.pool, host.base)
    if run.decay == "weights" and not isinstance(method, Finetune):
        raise RunError(f"decay=weights is for finetune; {method.name} does not have the weights, only a difference")
    return method


def _stays_here(run: Run, method: Method, task: Task, host: Host) -> list[str]:
    """A note if only the head keeps the adapter from being merged or exported to peft."""
    if task.per_token or task.head is not None or type(method) not in (Lora, BitFit, Norms, Finetune, DiffPrune):
        return []
    pool = choose_pool(run.pool, host.base)
    other_head = cannot_leave(run.head, pool, host.base)
    if not other_head:
        return []
    return [f"a head on pool={pool} cannot be merged or exported to peft; if you need that, train with {other_head}"]


def read_examples(
    source: Source,
    task: Task,
    given: Mapping[str, str],
    bad: Bad = stop,
    labelled: bool = True,
    pairs: bool | None = None,
) -> tuple[list[Example], str]:
    """A labelled file as a known task sees it, and a line on what was guessed: for `eval`.

    Args:
        pairs: whether the adapter was trained on pairs of texts; None if unknown.
    """
    sample = list(itertools.islice(source.records(bad), SAMPLE))
    arguments = (task.kind, source.columns, sample, given, source.hints, source.name)
    _, columns, note = choosing.choose(*arguments, labelled=labelled, pairs=pairs)
    return _read(source, task, columns, bad), note


def _drop_unlabelled(run: Run, sources: dict[str, Any], columns: Columns) -> list[str]:
    """Benchmarks come with test rows whose labels are secret; only test rows from --test must have them."""
    gold = columns.label or columns.tags or columns.answers
    if run.test is not None or "test" not in sources or not gold:
        return []
    sample = itertools.islice(sources["test"].records(Skipped()), SAMPLE)
    names = several(gold, sources["test"].columns)
    if any(record.fields.get(name) not in (None, "") for record in sample for name in names):
        return []
    return [f"{sources.pop('test').name}: its rows have no {gold}, so they are left out"]


def _new_labels(test: Sequence[Example], labels: Sequence[str]) -> list[str]:
    targets = (e.target if isinstance(e.target, tuple) else (e.target,) for e in test)
    new = {t for target in targets for t in target if isinstance(t, str) and t} - set(labels)
    return [f"test rows have labels that training never sees: {', '.join(sorted(new)[:5])}"] if new else []


def _task(run: Run, source: Any) -> tuple[Task, Columns, str]:
    task = parse_task(run.task) if run.task is not None else None
    name, columns, note = choose_columns(run, source, task.kind if task is not None else None)
    task = parse_task(name) if task is None else task
    changes: dict[str, Any] = {} if run.max_length is None else {"max_length": run.max_length}
    if run.long != "cut":
        if not hasattr(task, "long"):
            raise RunError(f"long={run.long} is for texts as a whole; {task.name} has windows anyway")
        changes["long"] = run.long
    return replace(task, **changes), columns, note


def _metric(run: Run, task: Task, hints: Mapping[str, str], labels: Sequence[str]) -> str:
    """The metric asked for, else the one that this data set is known by, else the task's own."""
    usual = hints.get("metric") or (metric_of(run.data) if isinstance(run.data, str) else None)
    fits = usual is not None and task.kind == hints.get("task", "classification")
    return task.primary(run.metric or (usual if fits else None), labels)


def _read(source: Any, task: Task, columns: Columns, bad: Bad) -> list[Example]:
    if source is None:
        return []
    examples: list[Example] = []
    for record in source.records(bad):
        try:
            examples.append(task.read(record, columns))
        except Unusable as problem:
            bad(record.place, str(problem))
    if not examples:
        raise DataError(f"{source.name}: has no rows that can be used")
    return examples


def _texts(run: Run, tokenizer: Any, host: Host, train: list[Example], pool: list[Example] | None) -> Split:
    """The training texts without their labels."""
    bare = {id(e): Example(e.shown(), e.pair, place=e.place) for e in pool or train}
    texts = [bare[id(e)] for e in train]
    encoder = Encoder(parse_task("mlm"), tokenizer, (), row_limit(host, run.max_length))
    return Split(texts, encoder.rows(texts, list(bare.values()) if pool else None))


def _weights(run: Run, train: list[Example], labels: Sequence[str]) -> list[float] | None:
    if not run.class_weights:
        return None
    targets = [t for e in train for t in (e.target if isinstance(e.target, list | tuple) else [e.target])]
    if not all(isinstance(t, str) for t in targets) or set(labels).isdisjoint(targets):
        raise RunError("class weights are for classes; this task has none")
    counts = Counter(targets)
    weights = describe.class_weights({label: counts[label] for label in labels if counts[label]})
    return [weights.get(label, 0.0) for label in labels]


def _look(
    task: Task,
    train: list[Example],
    validation: list[Example],
    test: list[Example],
    lengths: list[int],
    limit: int,
) -> describe.Look:
    def texts(examples: list[Example]) -> list[tuple[str, str | None]]:
        return [(e.shown(), e.pair) for e in examples]

    classes = [e.target for e in train] if task.kind == "classification" else None
    kind = {"multilabel": "label", "tagging": "tag"}.get(task.kind, "class")
    names = None if kind == "class" else [name for e in train for name in task.label_names(e)]
    others = {"validation": texts(validation), "test": texts(test)}
    return describe.look(texts(train), classes, lengths, limit, {k: v for k, v in others.items() if v}, kind, names)
