"""Guesses what the columns of a file are, by well-known names and then by what a sample of rows holds.

Nothing here is an error: what cannot be guessed is "". Columns of bookkeeping (ids, confidences, dates, names that
start with "_") are never guessed. A pair is guessed by name, since two long columns are as often a title and a body;
only where a file has no header, and so no names, are two columns of texts a pair.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay.data.record import Record, as_flag, several

_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("texta", "textb"),
    ("text1", "text2"),
    ("sentencea", "sentenceb"),
    ("1string", "2string"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "sentence"),
    ("question", "context"),
)
_TEXT = (
    "text sentence review tweet content body message comment utterance post document article abstract "
    "question query description input headline title"
).split()
_LABEL = (
    "label labels class category sentiment intent target gold goldlabel stars score rating y "
    "isduplicate emotion topic categories topics tags answer"
).split()
_TOKENS = "tokens words token word forms form".split()
_TAGS = "tags nertags ner labels tag label upos postags pos".split()
_QA = {
    "question": "question query".split(),
    "context": "context passage paragraph document text".split(),
    "answers": "answers answer".split(),
}
_NEVER = (
    "id ids idx index guid uuid uid key confidence url uri link path file filename date time datetime timestamp "
    "created at split fold lang language source genre annotator worker name username screenname"
).split()
_LABEL_KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "classification": (("text", "number"), ("empty", "other")),
    "multilabel": (("list",), ("text", "other"), ("empty",)),
    "regression": (("number",), ("text",), ("empty",)),
    "": (("list", "text", "number"), ("empty", "other")),
}
"""Task -> the kinds of column its label may be, likely ones first; "" while the task is not known.

The last kinds are wrong, but if the name fits, the reader of rows says best what is wrong with them.
"""
_LONGEST_LABEL = 60
"""Characters."""
_SHORTEST_TEXT = 10
"""Characters, on average, of a column that reads like text."""
_ENOUGH_NUMBERS = 20
"""From this many values on, whole numbers that hardly repeat are amounts, not classes."""
_UNNAMED = re.compile(r"column\d+")


@dataclass(frozen=True)
class Seen:
    """What the sample shows of one column."""

    name: str
    key: str
    """The name in lower case, letters and digits only."""
    last: str
    """The last word of the name."""
    judged: bool
    """Whether a column of confidences belongs to it, as in files of annotators' judgements."""
    never: bool
    """Whether it holds bookkeeping, which is never guessed."""
    kind: str
    """empty, number, text, list, or other"""
    cells: list[Any]
    """One per row, None where blank."""
    values: list[Any]
    """The cells that are not blank."""

    @classmethod
    def of(cls, name: str, names: Sequence[str], sample: Sequence[Record]) -> Seen:
        """Look at the column `name` of a file that has the columns `names`."""
        cells = [None if _is_blank(value := record.fields.get(name)) else value for record in sample]
        values = [cell for cell in cells if cell is not None]
        words = re.findall(r"[^\W_]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower())
        key, last, keys = _key(name), words[-1] if words else "", {_key(other) for other in names}
        copy = last == "gold" and key.removesuffix("gold") in keys
        never = name.startswith("_") or last in _NEVER or copy
        return cls(name, key, last, key + "confidence" in keys, never, _kind_of(values), cells, values)

    @property
    def filled(self) -> float:
        """The share of rows that are not blank."""
        return len(self.values) / max(len(self.cells), 1)

    @property
    def length(self) -> float:
        """Mean characters per row; a blank row counts, so that a rare long note is no text column."""
        return sum(len(str(value)) for value in self.values) / max(len(self.cells), 1)

    @property
    def distinct(self) -> int:
        """How many different values, or items of lists."""
        items = (item for value in self.values for item in (value if self.kind == "list" else [value]))
        return len({str(item) for item in items})

    @property
    def categorical(self) -> bool:
        """Few distinct short values, in nearly every row."""
        short = all(len(str(value)) <= _LONGEST_LABEL for value in self.values)
        return short and self.filled >= 0.9 and 2 <= self.distinct <= max(2, len(self.values) // 2)

    @property
    def is_flag(self) -> bool:
        """0 or 1 in nearly every row."""
        return self.filled >= 0.9 and all(as_flag(value) is not None for value in self.values)

    @property
    def reads_like_text(self) -> bool:
        """Whether most values have several words, or letters of scripts without spaces; not ids, links and classes."""
        if self.kind != "text" or self.filled < 0.9 or self.length < _SHORTEST_TEXT:
            return False
        worded = sum(" " in (text := str(value).strip()) or not text.isascii() for value in self.values)
        return 2 * worded > len(self.values) and 10 * self.distinct > len(self.values)


def is_unnamed(column: str) -> bool:
    """Whether a column has a number instead of a name, since its file has no header."""
    return bool(_UNNAMED.fullmatch(column))


def _key(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _is_blank(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip()) or value in ([], (), {})


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _kind_of(values: Sequence[Any]) -> str:
    if not values:
        return "empty"
    if all(isinstance(value, list | tuple) for value in values):
        return "list"
    if any(isinstance(value, list | tuple | dict) for value in values):
        return "other"
    numbers = sum(_as_number(value) is not None for value in values)
    return "number" if numbers > 0.9 * len(values) else "text"  # a rare bad number is for the reader of rows to name


_NONE = Seen("", "", "", False, True, "empty", [], [])


def task(seen: Sequence[Seen], passed: Mapping[str, str], hinted: Mapping[str, str]) -> str:
    """The task that these columns look like; the text, pair and label passed or hinted are known already."""
    if "pair" not in passed and _looks_tagged(seen, passed):
        return "tagging"
    keys = {s.key for s in seen}
    is_asking = not passed and {"question", "context"} <= keys
    if is_asking and keys & set(_QA["answers"]):
        return "qa"
    name = texts(seen, {**hinted, **passed}, "", True).get("label", "")
    if len(several(name, [s.name for s in seen])) > 1:
        return "multilabel"
    label = next((s for s in seen if s.name == name), None)
    if label is None:
        return "qa" if is_asking else "classification"
    if label.kind == "list":
        return "multilabel"
    if label.kind != "number":
        return "classification"
    whole = all((_as_number(value) or 0.0).is_integer() for value in label.values)
    repeats = len(label.values) < _ENOUGH_NUMBERS or 2 * label.distinct <= len(label.values)
    return "classification" if whole and repeats else "regression"


def texts(
    seen: Sequence[Seen], fixed: Mapping[str, str], task: str, labelled: bool, pairs: bool = True
) -> dict[str, str]:
    """Text, pair and label; a label is looked for by name first, so that it is not taken for a text.

    Args:
        pairs: False where a pair is of no use.
    """
    name_of_part = dict(fixed)
    names = [s.name for s in seen]

    def free(*kinds: str) -> list[Seen]:
        used = {part for name in name_of_part.values() for part in several(name, names)}
        return [s for s in seen if s.kind in kinds and not s.never and s.name not in used]

    groups = _LABEL_KINDS.get(task, _LABEL_KINDS[""]) if labelled and "label" not in name_of_part else ()
    label = next((name for kinds in groups if (name := _label_by_name(free(*kinds)))), "")
    if groups and task in ("", "multilabel"):
        label = _flag_columns(seen, free("number", "text"), label)
    if label:
        name_of_part["label"] = label
    if "text" not in name_of_part:
        first, second = _find_pair(free("text", "empty"), name_of_part.get("pair", "")) if pairs else ("", "")
        name_of_part["text"] = first or _text(free("text", "empty")) or _by_name(free("number"), _TEXT)
        name_of_part.setdefault("pair", second)
    if groups and not label:
        name_of_part["label"] = next((name for kinds in groups if (name := _label_by_content(free(*kinds), task))), "")
    return name_of_part


def _text(seen: Sequence[Seen]) -> str:
    longest = max((s for s in seen if s.values), key=lambda s: s.length, default=_NONE)
    return _by_name(seen, _TEXT) or _by_name(seen, _TEXT, last=True) or longest.name


def _by_name(seen: Sequence[Seen], keys: Sequence[str], last: bool = False) -> str:
    """The column with the first of these names, or with the first as its last word; blank columns come last."""
    matching = [(s, s.last if last else s.key) for s in seen]
    ranked = [(not s.values, keys.index(key), i) for i, (s, key) in enumerate(matching) if key in keys]
    return seen[min(ranked)[2]].name if ranked else ""


def _label_by_name(seen: Sequence[Seen]) -> str:
    seen = [s for s in seen if s.kind != "text" or s.length <= _LONGEST_LABEL]
    judged = max((s for s in seen if s.judged and s.values), key=lambda s: s.filled, default=_NONE)
    return _by_name(seen, _LABEL) or judged.name or _by_name(seen, [key for key in _LABEL if len(key) > 1], last=True)


def _flag_columns(seen: Sequence[Seen], free: Sequence[Seen], named: str) -> str:
    """Neighbouring columns of 0 and 1, each of which says whether a row has a label: `toxic,threat,insult`.

    Args:
        named: the label by its name. It is preferred, unless it is one of these columns: `toxic_label`, `threat_label`.
    """
    runs: list[list[Seen]] = [[]]
    free_names = {s.name for s in free}
    for s in seen:
        if s.name in free_names and s.is_flag:
            runs[-1].append(s)
        elif runs[-1]:
            runs.append([])
    best = max(runs, key=len)
    if sum(s.distinct > 1 for s in best) < 2:
        return named
    if named and not any(s.name == named and s.key not in _LABEL for s in best):
        return named
    if named and len({s.last for s in best}) > 1:
        return named
    return ",".join(s.name for s in best)


def _label_by_content(seen: Sequence[Seen], task: str) -> str:
    kinds = ("number",) if task == "regression" else ("text", "number")
    categorical = [s for s in seen if s.kind in kinds and s.categorical and task != "regression"]
    if categorical:
        return min(categorical, key=lambda s: s.distinct).name
    # Else the only column that cannot be a text: numbers, lists, or the same value in every row.
    left = [s for s in seen if s.kind in ("number", "list") or (s.kind in kinds and s.distinct == 1)]
    return left[0].name if len(left) == 1 else ""


def _find_pair(texts: Sequence[Seen], pair: str) -> tuple[str, str]:
    names = {s.key: s.name for s in reversed(texts)}
    for first, second in _PAIRS:
        if first in names and (_key(pair) == second if pair else second in names):
            return names[first], pair or names[second]
    like_text = [s for s in texts if s.reads_like_text]
    if not pair and len(like_text) == 2 and all(is_unnamed(s.name) for s in like_text):
        return like_text[0].name, like_text[1].name
    return "", ""


def _looks_tagged(seen: Sequence[Seen], passed: Mapping[str, str]) -> bool:
    """Whether lists of words stand beside lists of as many tags, and no text is there whose labels these could be."""
    lists = [s for s in seen if s.kind == "list"]
    fixed = {new: passed[old] for old, new in (("text", "tokens"), ("label", "tags")) if old in passed}
    columns = tagging(lists, fixed)
    tokens, tags = (next((s for s in lists if s.name == columns.get(field)), _NONE) for field in ("tokens", "tags"))
    named = "text" in passed or tokens.key in _TOKENS or not _by_name([s for s in seen if s.kind == "text"], _TEXT)
    return named and _are_parallel(tokens, tags) and any(len(words) > 1 for words in tokens.values)


def tagging(seen: Sequence[Seen], fixed: Mapping[str, str]) -> dict[str, str]:
    """Tokens and tags by name; else the lists with the most distinct words, and the parallel ones with the fewest."""
    name_of_part = dict(fixed)
    if "tokens" not in name_of_part:
        free = [s for s in seen if s.name != name_of_part.get("tags")]
        most = max((s for s in free if _holds_lists_of(s, str)), key=lambda s: s.distinct, default=_NONE)
        name_of_part["tokens"] = _by_name(free, _TOKENS) or most.name
    if "tags" not in name_of_part:
        free = [s for s in seen if s.name != name_of_part["tokens"]]
        tokens = next((s for s in seen if s.name == name_of_part["tokens"]), _NONE)
        beside = [s for s in free if _are_parallel(tokens, s)]
        fewest = min(beside, key=lambda s: s.distinct, default=_NONE)
        name_of_part["tags"] = _by_name(beside, _TAGS) or fewest.name or _by_name(free, _TAGS)
    return name_of_part


def _are_parallel(tokens: Seen, tags: Seen) -> bool:
    """Whether most rows have as many tags as words: a wrong row is for the reader of rows to name."""
    if not (_holds_lists_of(tokens, str) and _holds_lists_of(tags, str, int)):
        return False
    rows = list(zip(tokens.cells, tags.cells, strict=True))
    return 2 * sum(len(words or ()) == len(marks or ()) for words, marks in rows) > len(rows)


def _holds_lists_of(seen: Seen, *types: type) -> bool:
    return seen.kind == "list" and all(isinstance(item, types) for value in seen.values for item in value)


def answering(seen: Sequence[Seen], fixed: Mapping[str, str]) -> dict[str, str]:
    """Question, context and answers by name only."""
    name_of_part = dict(fixed)
    for field, keys in _QA.items():
        if field not in name_of_part:
            name_of_part[field] = _by_name([s for s in seen if s.name not in name_of_part.values()], keys)
    return name_of_part
