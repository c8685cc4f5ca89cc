"""Which column is what: given by the user, known from the file's layout, or guessed, in this order.

A guess is never silent: `choose` returns a line that tells it, with the options that overrule it. `guess.py` does the
guessing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from inlay.data import guess
from inlay.data.record import Record, several
from inlay.errors import DataError, suggest
from inlay.registry import tasks


@dataclass(frozen=True)
class Columns:
    """The column of each part of an example; "" where the task has no such part.

    A text may be joined from several (`subject,body`), and several of 0 and 1 may say which labels a row has.
    """

    text: str = ""
    pair: str = ""
    label: str = ""
    tokens: str = ""
    tags: str = ""
    question: str = ""
    context: str = ""
    answers: str = ""


_SINGLE = {"text": "--text", "pair": "--pair", "label": "--label"}
_OPTIONS = {
    **_SINGLE,
    "tokens": "--text",
    "tags": "--label",
    "question": "--text",
    "context": "--pair",
    "answers": "--label",
}
"""The option that names the column of a part."""
GOLD = frozenset({"label", "tags", "answers"})
"""The parts that hold the right answer."""


@dataclass(frozen=True)
class Declared:
    """What a task declares about its columns; see `inlay.tasks.Task`."""

    columns: tuple[str, ...]
    joined: tuple[str, ...] = ()
    optional: tuple[str, ...] = ("pair",)


OWN: Mapping[str, Declared] = {
    "classification": Declared(("text", "pair", "label"), ("text", "pair")),
    "multilabel": Declared(("text", "pair", "label"), ("text", "pair", "label")),
    "regression": Declared(("text", "pair", "label"), ("text", "pair")),
    "tagging": Declared(("tokens", "tags")),
    "qa": Declared(("question", "context", "answers")),
    "mlm": Declared(("text",), ("text",)),
}
"""The tasks of this package: their columns are checked before their classes, and torch, are imported."""


def declared(task: str) -> Declared:
    """What a task declares about its columns."""
    if task in OWN:
        return OWN[task]
    kind = tasks.find(task)
    return Declared(kind.columns, kind.joined, kind.optional)


def parts(task: str) -> dict[str, str]:
    """The parts that a task declares, and the option that names the column of each."""
    return {part: _OPTIONS[part] for part in declared(task).columns}


def by_option(task: str, columns: Columns) -> dict[str, str]:
    """Columns as options name them: a tagging task's tokens are its `text`, its tags the `label`."""
    return {option[2:]: name for part, option in parts(task).items() if (name := getattr(columns, part))}


def in_pairs(trained: Mapping[str, str] | None) -> bool | None:
    """Whether an adapter with these columns (`by_option`) reads pairs of texts; None if that is unknown."""
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
    whether the adapter was trained on pairs of texts; None lets the file decide.
    """
    passed = {key: name for key, name in given.items() if name}
    _check_given(passed, names, where)
    seen = [guess.Seen.of(name, names, sample) for name in names]
    known = task or hints.get("task")
    chosen = known or _guess_task(seen, passed, hints)
    fixed = _known_columns(chosen, passed, hints, names, where)
    if pairs is False and "pair" not in passed:
        fixed.pop("pair", None)
    guessed = _guess_columns(chosen, seen, fixed, labelled, pairs is not False)
    all_names = {**fixed, **guessed}
    optional = {*(() if pairs else declared(chosen).optional), *(() if labelled else GOLD)}
    missing = [f for f in parts(chosen) if f not in all_names and f not in optional]
    if missing:
        raise DataError(f"{where}: {_explain_missing(chosen, missing, names)}")
    line = _describe_guesses(chosen, guessed, bool(known))
    return chosen, Columns(**all_names), f"{line}{_note_unused(chosen, seen, all_names)}" if "text" in guessed else line


def _check_given(passed: Mapping[str, str], names: Sequence[str], where: str) -> None:
    owner: dict[str, str] = {}
    for field, name in passed.items():
        option = _OPTIONS[field]
        named = several(name, names)
        for part in named:
            if part not in names:
                raise DataError(f"{where}: no column {part!r} ({option}). {suggest(part, names)}")
            if owner.setdefault(part, option) != option:
                both = f"{owner[part]} and {option} both name the column {part!r}"
                raise DataError(f"{where}: {both}; each needs its own")
        if len(set(named)) < len(named):
            raise DataError(f"{where}: {option} {name} names a column twice")


def _known_columns(
    task: str, passed: Mapping[str, str], hints: Mapping[str, str], names: Collection[str], where: str
) -> dict[str, str]:
    """The columns that need no guess: those given, then those hinted that exist and are free."""
    options = parts(task)
    part_of_option = {option: field for field, option in options.items()}
    fixed: dict[str, str] = {}
    for field, name in passed.items():
        part = field if field in options else part_of_option.get(_SINGLE.get(field, ""), "")
        if not part:
            raise DataError(f"{where}: {task} has no {field} column; it has {_in_words(list(options), 'and')}")
        if len(several(name, names)) > 1 and part not in declared(task).joined:
            hint = "; several columns of 0 and 1 are for --task multilabel" if part == "label" else ""
            raise DataError(f"{where}: {options[part]} {name}: {task} has one column of its {part}{hint}")
        if part == field or part not in fixed:
            fixed[part] = name
    other_text = "text" in fixed and fixed["text"] != hints.get("text")  # then the layout's pair is not its pair
    for field in options:
        name = hints.get(field, "")
        if name in names and name not in fixed.values() and not (field == "pair" and other_text):
            fixed.setdefault(field, name)
    return fixed


def _guess_task(seen: Sequence[guess.Seen], passed: Mapping[str, str], hints: Mapping[str, str]) -> str:
    for task in ("tagging", "qa"):
        if passed.keys() & parts(task).keys():
            return task
    names = [s.name for s in seen]
    hinted = {f: name for f in _SINGLE if (name := hints.get(f, "")) in names}
    return guess.task(seen, passed, hinted)


def _guess_columns(
    task: str, seen: Sequence[guess.Seen], fixed: Mapping[str, str], labelled: bool, pairs: bool
) -> dict[str, str]:
    if task == "tagging":
        guesses = guess.tagging(seen, fixed)
    elif task == "qa":
        guesses = guess.answering(seen, fixed)
    else:
        guesses = guess.texts(seen, fixed, task, labelled and "label" in parts(task), pairs)
    wanted = [f for f in parts(task) if f not in fixed and (labelled or f not in GOLD)]
    return {f: guesses[f] for f in wanted if guesses.get(f)}


def _in_words(items: Sequence[str], word: str) -> str:
    return f" {word} ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def _explain_missing(task: str, missing: Sequence[str], names: Sequence[str]) -> str:
    options = _in_words([f"{parts(task)[field]} COLUMN" for field in missing], "and")
    if "pair" in missing and "pair" in declared(task).optional:
        problem = "the adapter was trained on pairs of texts, and no column looks like the second"
    else:
        problem = f"no column looks like the {' or '.join(missing)} (task {task})"
    return f"{problem}; the columns are {', '.join(names)}; pass {options}"


def _note_unused(task: str, seen: Sequence[guess.Seen], chosen: Mapping[str, str]) -> str:
    """A note about a column of texts that could be used and is not; "" without one."""
    used = {part for name in chosen.values() for part in several(name, [s.name for s in seen])}
    left = [s.name for s in seen if s.reads_like_text and not s.never and s.name not in used]
    if not left or not declared(task).joined or "pair" in chosen:
        return ""
    pair = f", --pair {left[0]} makes pairs" if "pair" in parts(task) else ""
    return f"; not used: {_in_words(left, 'and')} (--text {left[0]},{chosen['text']} joins columns{pair})"


def _describe_guesses(task: str, guessed: Mapping[str, str], task_known: bool) -> str:
    guesses = [f'{field} = "{name}"' for field, name in guessed.items()] + [f"task = {task}"] * (not task_known)
    if not guesses:
        return ""
    options = {parts(task)[field] for field in guessed}
    if "text" in guessed and "pair" in parts(task):
        options.add("--pair")
    ordered = [o for o in ("--text", "--pair", "--label") if o in options] + ["--task"] * (not task_known)
    return f"guessed: {', '.join(guesses)} (pass {_in_words(ordered, 'or')} to choose)"
