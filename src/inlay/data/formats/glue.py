"""GLUE's own folders: which column is which, for each task. One line per task; nothing else is special.

The files are tables with tabs and without quotes. Only CoLA has no header. A test file has no labels, so a hint
is given only if its column is there. MRPC and QQP are scored by F1, STS-B by Spearman's rank correlation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Task(NamedTuple):
    """The columns of one GLUE task and how it is scored."""

    text: str
    pair: str | None
    label: str
    kind: str = "classification"
    metric: str = "accuracy"
    tells: str = ""
    """A column that no other task has: the file is known by it in any folder."""


TASKS = {
    "cola": Task("sentence", None, "label", metric="matthews"),
    "sst2": Task("sentence", None, "label"),
    "mrpc": Task("#1 String", "#2 String", "Quality", metric="f1", tells="#1 String"),
    "qqp": Task("question1", "question2", "is_duplicate", metric="f1", tells="is_duplicate"),
    "stsb": Task("sentence1", "sentence2", "score", "regression", "spearman", tells="old_index"),
    "mnli": Task("sentence1", "sentence2", "gold_label", tells="sentence1_binary_parse"),
    "qnli": Task("question", "sentence", "label"),
    "rte": Task("sentence1", "sentence2", "label"),
    "wnli": Task("sentence1", "sentence2", "label"),
    "ax": Task("sentence1", "sentence2", "label", metric="matthews"),
}
_ALSO = {"sst": "sst2", "sts": "stsb", "mnlim": "mnli", "mnlimm": "mnli", "diagnostic": "ax"}
COLA = ("source", "label", "mark", "sentence")


def task_of(folder: str) -> str | None:
    """The task that a folder of this name holds: CoLA, STS-B, mnli-mm."""
    name = re.sub(r"[^a-z0-9]", "", folder.lower())
    name = _ALSO.get(name, name)
    return name if name in TASKS else None


def recognise(folder: str, columns: Sequence[str]) -> str | None:
    """The task of a file with a header: that of its folder, if the columns agree, else the one its columns tell."""
    known = task_of(folder)
    if known and TASKS[known].text in columns and (TASKS[known].pair or TASKS[known].text) in columns:
        return known
    return next((name for name, task in TASKS.items() if task.tells and task.tells in columns), None)


def is_cola(rows: Sequence[Sequence[str]]) -> bool:
    """CoLA is known by its cells: source, 0 or 1, marks such as * or nothing, the sentence."""
    fitting = sum(len(row) == 4 and row[1] in ("0", "1") and not row[2].strip("*? ") for row in rows)
    return bool(rows) and fitting > 0.9 * len(rows)


def hints(task: str, columns: Sequence[str]) -> Mapping[str, str]:
    """What the columns of this file are for."""
    row = TASKS[task]
    roles = {"text": row.text, "pair": row.pair, "label": row.label}
    return {
        "task": row.kind,
        "metric": row.metric,
        **{r: c for r, c in roles.items() if c is not None and c in columns},
    }
