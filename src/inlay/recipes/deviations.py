"""What differs from the paper: found by comparing the runs with the recipe.

What no setting of a row says is in the recipe's `protocol`. Inlay's side is what the runs had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inlay.comparison.runner import ComparisonRunner
from inlay.data.folder import split_of
from inlay.engine.host import Host
from inlay.engine.outputs import head_dropout
from inlay.heads.pool import choose as choose_pool
from inlay.recipes.plan import Chosen, is_tuned, same_base, shown_values
from inlay.recipes.recipe import SILENT, Column, listed
from inlay.runs.run import Run
from inlay.sweeps.values import short

REPORTED = "the metric that is reported"
"""In `protocol`: what picks the best checkpoint."""
CHOSE, DEV, TEST, DRAWN = "chose", "dev", "test", "drawn"
"""The rows that a column is scored on: those that chose the settings, other dev rows, test rows, or drawn ones."""
_OURS = "Inlay's default"
_USUAL = {"max_steps": "all steps", "train_size": "all rows"}
"""What a paper has where it names no value; for other settings it is Inlay's default."""


def deviations(chosen: Chosen, runner: ComparisonRunner) -> list[str]:
    """All differences from the paper, a line each."""
    lines = [*_base(chosen, runner), *_scored(chosen, runner), *_left_out(chosen, runner), *_changed(chosen)]
    done = {text.partition(":")[0].replace("_", " ") for text in lines}
    return [*lines, *(text for text in _protocol(chosen, runner) if text.partition(":")[0] not in done)]


def _base(chosen: Chosen, runner: ComparisonRunner) -> list[str]:
    ours, recipe = runner.host.base.name, chosen.recipe
    others = dict.fromkeys(recipe.base_of(row) for row in chosen.rows)
    other = [base for base in others if not same_base(ours, base)]
    return [f"base: {ours} instead of {' and '.join(other)}"] if other else []


def _scored(chosen: Chosen, runner: ComparisonRunner) -> list[str]:
    """The rows that columns are scored on, where the paper has others."""
    by_kind: dict[str, list[str]] = {}
    for column in chosen.columns:
        by_kind.setdefault(_kind(chosen, runner, column), []).append(column.name)
    paper = chosen.recipe.measured
    texts = {
        CHOSE: f"scored on validation rows, which also picked the settings; the paper on {paper}",
        DEV: f"scored on dev rows; the paper on {paper}",
        TEST: f"scored on your test rows; the paper on {paper}",
        DRAWN: f"scored on test rows drawn here; the paper on {paper} of its own",
    }
    as_there = {CHOSE: paper == "validation rows", TEST: chosen.recipe.dev_is_test or paper == "test rows"}
    return [
        f"{listed(by_kind[kind])}: {text}" for kind, text in texts.items() if kind in by_kind and not as_there.get(kind)
    ]


def _kind(chosen: Chosen, runner: ComparisonRunner, column: Column) -> str:
    found = next(f for f in chosen.found if f.dataset == column.dataset)
    if column.language is not None:
        file = found.languages[column.language]
        return TEST if split_of(file.name) != "validation" else CHOSE if str(file) == found.val else DEV
    name = chosen.part(chosen.rows[0], column.dataset)
    part = next(part for part in runner.parts if part.about.name == name)
    is_drawn = any(data.run.test_size is not None for data in part.data.values())
    return CHOSE if part.about.split == "validation" else DRAWN if is_drawn else TEST


def _left_out(chosen: Chosen, runner: ComparisonRunner) -> list[str]:
    recipe, changes = chosen.recipe, chosen.changes
    lines = [f"left out: {text}" for text in chosen.missing]
    gone = [column.name for column in recipe.columns if column not in chosen.columns]
    there = {found.dataset.name for found in chosen.found}
    no_file = [c.name for c in recipe.columns if c.name in gone and c.language and c.dataset.name in there]
    no_file = [name for name in no_file if not changes.only or name in changes.only]
    lines += [f"left out: {listed(no_file)}: no test file"] if no_file else []
    absent = {text.partition(":")[0] for text in chosen.missing} | set(no_file)
    not_requested = [name for name in gone if changes.only and name not in absent]
    lines += [f"left out, as requested: {listed(not_requested)}"] if not_requested else []
    lines += [f"left out: {text}" for text in chosen.unfit]
    ran = {chosen.paper_row(row).name for row in chosen.rows}
    unfit = [spec.partition(": ")[0] for spec in chosen.unfit]
    other = [row for row in recipe.rows if row.name not in ran and not all(spec in unfit for spec in row.methods)]
    if changes.rows:
        lines += [f"rows left out, as requested: {', '.join(row.label for row in other)}"] if other else []
    elif other:
        bases = dict.fromkeys(recipe.base_of(row) for row in other)
        hint = "run them with that --base, or name them (--lines)"
        lines.append(f"rows left out: those of {' and '.join(bases)}; {hint}")
    waiting = sum(row.state in ("waiting", "running") for row in runner.rows())
    lines += [f"unfinished: {waiting} of {runner.runs} runs; run it again to continue"] if waiting else []
    return lines


def _changed(chosen: Chosen) -> list[str]:
    recipe, changes = chosen.recipe, chosen.changes
    lines = [f"seeds: {chosen.seeds} instead of {recipe.seeds}"] if chosen.seeds != recipe.seeds else []
    settings = {**{key: (value,) for key, value in changes.settings().items()}, **changes.grid}
    for key, values in settings.items():
        before = _before(chosen, key)
        if before == _OURS and key in recipe.protocol:
            continue  # `_protocol` says it
        if before != shown_values(values):
            lines.append(f"{key}: {shown_values(values)} instead of {before}")
    for key in changes.tune:
        tuned = [row for row in chosen.rows if is_tuned(row)]
        tried = [chosen.tried(row, found.dataset)[key] for row in tuned for found in chosen.found]
        each = len(tried[0])
        values = " or ".join(dict.fromkeys(shown_values(values) for values in tried))
        lines.append(f"{key}, in the rows tuned: the best of {each} by validation, {values}; the paper has its own")
    return lines


def _before(chosen: Chosen, key: str) -> str:
    rows = [chosen.paper_row(row) for row in chosen.rows]
    tried = [chosen.recipe.tried(row, found.dataset) for row in rows for found in chosen.found]
    return " or ".join(_each(shown_values(t[key]) if key in t else _USUAL.get(key, _OURS) for t in tried))


def _protocol(chosen: Chosen, runner: ComparisonRunner) -> list[str]:
    """Settings that no row names: the paper's value, and what the runs had."""
    lines = []
    for key, paper in chosen.recipe.protocol.items():
        ours = _ours(key, runner)
        if key == "selection":
            ours = [metric for metric in ours if metric not in ([paper] if isinstance(paper, str) else paper)]
        if not ours or ours == [_shown(paper)] or (key == "selection" and paper == REPORTED):
            continue
        how = "; the paper does not say" if paper == SILENT else f" instead of {_shown(paper)}"
        lines.append(f"{key.replace('_', ' ')}: {' or '.join(ours)}{how}")
    return lines


def _ours(key: str, runner: ComparisonRunner) -> list[str]:
    """What the runs had, each value once."""
    if key == "selection":
        return _each(part.about.metric for part in runner.parts)
    if key == "pool":
        whole = [trial.data.run for trial in runner.trials if not trial.data.task.per_token]
        return _each(choose_pool(run.pool, runner.host.base) for run in whole)
    if key in ("attention_dropout", "head_dropout"):
        dropout_of = _attention_dropout if key == "attention_dropout" else _head_dropout
        # mixout replaces all dropout, in the paper too
        runs = [trial.data.run for trial in runner.trials if not trial.data.method.mixout]
        return _each(_shown(dropout_of(run, runner.host) if run.dropout else 0) for run in runs)
    if key in Run.model_fields:
        runs = [trial.data.run for trial in runner.trials]
        runs = [run for run in runs if run.pretrain_on_text] if key.startswith("pretrain_") else runs
        return _each(_shown(getattr(run, key)) for run in runs)
    return ["Inlay has no such setting"]


def _attention_dropout(run: Run, host: Host) -> float:
    return host.forward.spec.attention_dropout if run.attention_dropout else 0.0


def _head_dropout(run: Run, host: Host) -> float:
    return head_dropout(host.base) if run.head_dropout is None else run.head_dropout


def _each(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return shown_values(value)
    return "none" if value in (0, None) and not isinstance(value, bool) else short(value)
