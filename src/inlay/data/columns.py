"""Which column is what: given by the user, said by the layout, or guessed, in this order.

A guess is never silent: `choose` returns the line that tells it, with the options that overrule it. How the
guessing goes is in `guess.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from inlay.data import guess
from inlay.data.record import Record
from inlay.errors import DataError, SpecError, suggest


@dataclass(frozen=True)
class Columns:
    """The column of each part of an example; "" where the task has no such part."""

    text: str = ""
    pair: str = ""
    label: str = ""
    tokens: str = ""
    tags: str = ""
    question: str = ""
    context: str = ""
    answers: str = ""


_SINGLE = {"text": "--text", "pair": "--pair", "label": "--label"}
FIELDS: Mapping[str, Mapping[str, str]] = {
    "classification": _SINGLE,
    "multilabel": _SINGLE,
    "regression": _SINGLE,
    "tagging": {"tokens": "--text", "tags": "--label"},
    "qa": {"question": "--text", "context": "--pair", "answers": "--label"},
    "mlm": {"text": "--text"},
}
"""Task -> its parts and the option that names the column of each."""

_GOLD = frozenset({"label", "tags", "answers"})
_OPTIONAL = frozenset({"pair"})


def by_option(task: str, columns: Columns) -> dict[str, str]:
    """Columns as options name them: a tagging task's tokens are its `text`, its tags the `label`."""
    return {option[2:]: name for part, option in FIELDS[task].items() if (name := getattr(columns, part))}


def in_pairs(trained: Mapping[str, str] | None) -> bool | None:
    """Whether an adapter with these columns (`by_option`) reads pairs of texts; None if nobody knows."""
    return bool(trained.get("pair")) if trained else None


def choose(
    task: str | None,
    names: Sequence[str],
    sample: Sequence[Record],
    given: Mapping[str, str],
    hints: Mapping[str, str],
    where: str,
    labelled: bool = True,
    pairs: bool | None = None,
) -> tuple[str, Columns, str]:
    """(task, columns, a line that says what was guessed, or "").

    `given`: what the user passed, by the names of `Columns`; `text`, `pair` and `label` stand for the parts of
    tagging and question answering too. With `labelled=False` a label is used if known, and never looked for. `pairs`:
    whether texts come in pairs, as an adapter was trained; None where the file decides.
    """
    asked = {key: name for key, name in given.items() if name}
    _check_given(asked, names, where)
    seen = [guess.Seen.of(name, names, sample) for name in names]
    known = task or hints.get("task")
    chosen = known or _task(seen, asked, hints)
    if chosen not in FIELDS:
        raise SpecError(f"there is no task {chosen!r}: {suggest(chosen, FIELDS)}")
    fixed = _fixed(chosen, asked, hints, names, where)
    if pairs is False and "pair" not in asked:
        fixed.pop("pair", None)
    guessed = _guess(chosen, seen, fixed, labelled, pairs is not False)
    found = {**fixed, **guessed}
    optional = {*(() if pairs else _OPTIONAL), *(() if labelled else _GOLD)}
    missing = [f for f in FIELDS[chosen] if f not in found and f not in optional]
    if missing:
        raise DataError(f"{where}: {_not_found(chosen, missing, names)}")
    return chosen, Columns(**found), _line(chosen, guessed, bool(known))


def _check_given(asked: Mapping[str, str], names: Sequence[str], where: str) -> None:
    options = {field: option for parts in FIELDS.values() for field, option in parts.items()}
    owner: dict[str, str] = {}
    for field, name in asked.items():
        option = options[field]
        if name not in names:
            raise DataError(f"{where}: there is no column {name!r} ({option}): {suggest(name, names)}")
        if owner.setdefault(name, option) != option:
            raise DataError(f"{where}: {owner[name]} and {option} both name the column {name!r}; each needs its own")


def _fixed(
    task: str, asked: Mapping[str, str], hints: Mapping[str, str], names: Collection[str], where: str
) -> dict[str, str]:
    """What needs no guess: given, then hinted where the column exists and is free."""
    parts = FIELDS[task]
    by_option = {option: field for field, option in parts.items()}
    fixed: dict[str, str] = {}
    for field, name in asked.items():
        own = field if field in parts else by_option.get(_SINGLE.get(field, ""), "")
        if not own:
            raise DataError(f"{where}: {task} has no {field} column; it has {_join(list(parts), 'and')}")
        if own == field or own not in fixed:
            fixed[own] = name
    other_text = "text" in fixed and fixed["text"] != hints.get("text")  # then the layout's pair is not its pair
    for field in parts:
        name = hints.get(field, "")
        if name in names and name not in fixed.values() and not (field == "pair" and other_text):
            fixed.setdefault(field, name)
    return fixed


def _task(seen: Sequence[guess.Seen], asked: Mapping[str, str], hints: Mapping[str, str]) -> str:
    for task in ("tagging", "qa"):
        if asked.keys() & FIELDS[task].keys():
            return task
    names = [s.name for s in seen]
    hinted = {f: name for f in _SINGLE if (name := hints.get(f, "")) in names}
    return guess.task(seen, asked, hinted)


def _guess(
    task: str, seen: Sequence[guess.Seen], fixed: Mapping[str, str], labelled: bool, pairs: bool
) -> dict[str, str]:
    if task == "tagging":
        found = guess.tagging(seen, fixed)
    elif task == "qa":
        found = guess.answering(seen, fixed)
    else:
        found = guess.texts(seen, fixed, task, labelled and task != "mlm", pairs)
    wanted = [f for f in FIELDS[task] if f not in fixed and (labelled or f not in _GOLD)]
    return {f: found[f] for f in wanted if found.get(f)}


def _join(items: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def _not_found(task: str, missing: Sequence[str], names: Sequence[str]) -> str:
    parts = " or ".join(missing)
    options = _join([f"{FIELDS[task][field]} COLUMN" for field in missing], "and")
    if "pair" in missing:
        said = "the adapter was trained on pairs of texts, and no column looks like the second"
    else:
        said = f"no column looks like the {parts} (task {task})"
    return f"{said}; the columns are {', '.join(names)}; pass {options}"


def _line(task: str, guessed: Mapping[str, str], task_known: bool) -> str:
    said = [f'{field} = "{name}"' for field, name in guessed.items()] + [f"task = {task}"] * (not task_known)
    if not said:
        return ""
    options = {FIELDS[task][field] for field in guessed}
    if "text" in guessed and "pair" in FIELDS[task]:
        options.add("--pair")
    asked = [option for option in ("--text", "--pair", "--label") if option in options] + ["--task"] * (not task_known)
    return f"guessed: {', '.join(said)} (pass {_join(asked, 'or')} to choose)"
