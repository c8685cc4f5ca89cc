"""Which of a run's rows test, which validate, and which are trained on."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.data import describe
from inlay.data import split as splitting
from inlay.errors import DataError, RunError
from inlay.runs.inputs import name_of
from inlay.runs.run import Run
from inlay.tasks import Example, Task


def for_test(run: Run, task: Task, known: list[Example], has_test: bool) -> tuple[list[Example], list[Example], str]:
    """The rows that are left, those that test, and a note. The seed does not matter here."""
    if has_test:
        raise RunError(f"{name_of(run)}: has test rows of its own; leave out test_size (--test-size)")
    assert run.test_size is not None
    texts = describe.groups([task.subject(e) for e in known])
    rest, test = splitting.for_test(len(known), run.test_size, _strata(run, task, known), texts)
    note = f"held out {len(test):,} of {len(known):,} rows for testing, the same for every seed"
    return [known[i] for i in rest], [known[i] for i in test], note


def split_known(
    run: Run, task: Task, known: list[Example], held_out: list[Example], tested: int
) -> tuple[list[Example], list[Example], list[str]]:
    """The rows to train on, those that validate, and notes.

    Args:
        known: all rows but those that test.
        held_out: the data's own validation rows, if there are any.
        tested: how many test; those that `test_size` took count where sizes are shares.
    """
    strata, total = _strata(run, task, known), len(known) + (tested if run.test_size is not None else 0)
    if run.fold is not None:
        return _without_fold(run, task, known, held_out, strata)
    if held_out:
        notes = (
            []
            if run.val_size is None
            else ["val_size (--val-size) is not used: the data has validation rows of its own"]
        )
        if run.train_size is None:
            return known, held_out, notes
        n = splitting.size(run.train_size, total, "train_size")
        if n > len(known):
            raise RunError(f"train_size {run.train_size} needs {n} rows; --test-size leaves {len(known)}")
        chosen = splitting.take(len(known), n, run.splits_by, strata)
        return [known[i] for i in chosen], held_out, [*notes, f"training on {n:,} of {len(known):,} rows"]
    if len(known) < 2:
        raise DataError(f"{name_of(run)}: one row is too few to train and validate on")
    texts = describe.groups([task.subject(e) for e in known])
    train, validation = splitting.split(
        *(len(known), run.splits_by),
        train_size=run.train_size,
        val_size=run.val_size,
        stratify=strata,
        groups=texts,
        of=total,
    )
    notes = [f"held out {len(validation):,} of {len(known):,} rows for validation (seed {run.splits_by})"]
    if run.train_size is not None:
        notes.append(f"training on {len(train):,} of {len(known):,} rows")
    return [known[i] for i in train], [known[i] for i in validation], notes


def _without_fold(
    run: Run, task: Task, known: list[Example], held_out: list[Example], strata: Sequence[str] | None
) -> tuple[list[Example], list[Example], list[str]]:
    """All but one part of the rows; that part validates if nothing else does. The seed does not matter here."""
    number, count = map(int, (run.fold or "").split("/"))
    setting = next((name for name in ("val_size", "train_size") if getattr(run, name) is not None), None)
    if setting is not None:
        raise RunError(f"{setting} (--{setting.replace('_', '-')}) cannot be combined with fold (--fold)")
    parts = splitting.folds(len(known), count, 0, strata, describe.groups([task.subject(e) for e in known]))
    if len(parts) < count:
        few = f"{len(parts)} different texts are too few for {count} parts"
        raise RunError(f"{name_of(run)}: {few} (--fold, --ensemble)")
    left_out = set(parts[number - 1])
    train = [e for i, e in enumerate(known) if i not in left_out]
    note = f"left out {len(left_out):,} of {len(known):,} rows (part {run.fold})"
    return train, held_out or [known[i] for i in sorted(left_out)], [note]


def into_folds(
    run: Run, task: Task, known: list[Example], number: int
) -> tuple[tuple[tuple[int, ...], ...], list[str]]:
    """The examples that each fold is scored on, by their numbers; the same text is never in two of them."""
    texts = describe.groups([task.subject(e) for e in known])
    folds = splitting.folds(len(known), number, run.splits_by, _strata(run, task, known), texts)
    seed = f"(seed {run.splits_by})"
    note = f"{len(folds)} folds of the {len(known):,} rows give the score {seed}; the adapter learns from all"
    return tuple(map(tuple, folds)), [note]


def _strata(run: Run, task: Task, known: list[Example]) -> list[str] | None:
    return [e.target for e in known] if run.stratify and task.kind == "classification" else None
