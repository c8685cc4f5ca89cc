"""A look at the data before training: classes, lengths, duplicates, and what leaks from train into test.

Texts are the same when they agree after Unicode NFC, case folding and folding of white space. They are compared by
128-bit hashes, so that a million long texts take some tens of megabytes. Blank texts are counted once, as empty,
and not as duplicates of each other.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from inlay.untrusted import one_line

Text = tuple[str, str | None]
"""A text and its pair, if it has one."""

_SHOWN = 10
_MANY = 20
"""From this many classes on, one row each for most of them looks like a wrong column."""
_WIDEST = 40
_BARS = "▁▂▃▄▅▆▇█"
_PLURAL = {"class": "classes", "label": "labels", "tag": "tags"}
_ENTITY = frozenset({"B-", "I-", "E-", "S-"})
_SAME = {"y": "yes", "n": "no", "t": "true", "f": "false"}
"""Short forms of classes."""
_NOTHING = frozenset({"nan", "na", "n/a", "none", "null", "nil", "<na>", "?", "-"})
"""What cells hold instead of a class where none was given."""


@dataclass(frozen=True)
class Look:
    """What a look at the training rows found."""

    rows: int
    labels: dict[str, int] = field(default_factory=dict)
    """Rows of each class or label, or words of each tag, by falling count."""
    kind: str = "class"
    """What a label is: a class, a label of several, or a tag."""
    form: str = ""
    """How tags are written."""
    lengths: list[tuple[int, int, int]] = field(default_factory=list)
    """Histogram of token lengths: (from, to, count)."""
    longest: int = 0
    mean: float = 0.0
    max_length: int | None = None
    over_long: int = 0
    """Rows longer than `max_length`."""
    duplicates_within: int = 0
    """Rows whose text appears in an earlier row too."""
    shared: dict[str, int] = field(default_factory=dict)
    """Split -> how many of its rows have a text that appears in train too."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Split -> its rows."""
    conflicting: int = 0
    """Texts that appear with more than one label."""
    empty: int = 0
    """Rows in which the text, or its pair, is blank."""


def look(
    texts: Sequence[Text],
    labels: Sequence[str] | None,
    lengths: Sequence[int] | None,
    max_length: int | None,
    others: Mapping[str, Sequence[Text]],
    kind: str = "class",
    names: Iterable[str] | None = None,
) -> Look:
    """Look at the training rows (`lengths` in tokens, before any are cut) and at the texts of other splits.

    Args:
        labels: the class of every row.
        kind: "label" or "tag" where rows have several.
        names: the labels or tags of all rows, counted instead of `labels`.
    """
    marks = [_hash_text(text) for text in texts]
    full = [mark for mark in marks if mark]
    train = set(full)
    sizes = list(lengths or ())
    occurring = Counter(names if names is not None else labels or ())
    counts = dict(sorted(occurring.items(), key=lambda item: (-item[1], item[0])))
    return Look(
        rows=len(texts),
        labels=counts,
        kind=kind,
        form=tag_form(counts) if kind == "tag" else "",
        lengths=histogram(sizes),
        longest=max(sizes, default=0),
        mean=sum(sizes) / len(sizes) if sizes else 0.0,
        max_length=max_length,
        over_long=0 if max_length is None else sum(length > max_length for length in sizes),
        duplicates_within=len(full) - len(train),
        shared={name: sum(_hash_text(text) in train for text in rows) for name, rows in others.items()},
        sizes={name: len(rows) for name, rows in others.items()},
        conflicting=0 if labels is None else _conflicting(marks, labels),
        empty=len(marks) - len(full),
    )


def groups(texts: Sequence[Text]) -> list[str]:
    """A name per row, the same for rows of the same text: what `split` keeps together."""
    return [_hash_text(text).hex() for text in texts]


def histogram(lengths: Sequence[int], bins: int = 8) -> list[tuple[int, int, int]]:
    """(from, to, count) for at most `bins` ranges of equal width, both ends included, from shortest to longest."""
    if not lengths:
        return []
    low, high = min(lengths), max(lengths)
    width = -(-(high - low + 1) // bins)
    counts = Counter((length - low) // width for length in lengths)
    starts = range(low, high + 1, width)
    return [(start, min(start + width - 1, high), counts[i]) for i, start in enumerate(starts)]


def lines(look: Look) -> list[str]:
    """The look as lines of plain text; what is as it should be is left out."""
    return [*_class_lines(look), *_length_lines(look), *_warnings(look)]


def class_weights(counts: Mapping[str, int]) -> dict[str, float]:
    """Balanced weights n / (k n_c), by which every class counts the same; 1 for a class without rows."""
    rows = sum(counts.values())
    classes = sum(1 for count in counts.values() if count)
    return {label: rows / (classes * count) if count else 1.0 for label, count in counts.items()}


def _hash_text(text: Text) -> bytes:
    """A hash of the folded text, or b"" if it is blank; the separator is white space, which no folded text holds."""
    parts = [_fold(part) for part in text if part is not None]
    return blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest() if all(parts) else b""


def _fold(text: str) -> str:
    folded = unicodedata.normalize("NFC", text).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split())


def _conflicting(marks: Sequence[bytes], labels: Sequence[str]) -> int:
    seen: dict[bytes, str] = {}
    torn: set[bytes] = set()
    for mark, label in zip(marks, labels, strict=True):
        if mark and seen.setdefault(mark, label) != label:
            torn.add(mark)
    return len(torn)


def _class_lines(look: Look) -> list[str]:
    if not look.labels:
        return [_counted(look.rows, "row")]
    shown = [(_shortened(label), count) for label, count in list(look.labels.items())[:_SHOWN]]
    wide, digits = max(len(name) for name, _ in shown), len(f"{shown[0][1]:,}")
    total = look.rows if look.kind == "label" else sum(look.labels.values())  # a row may have several labels, or none
    unshown = len(look.labels) - _SHOWN
    words = f", {_counted(total, 'word')}" if look.kind == "tag" else ""
    return [
        f"{_counted(look.rows, 'row')}{words}, {_counted(len(look.labels), look.kind, _PLURAL[look.kind])}",
        *(f"  {name:{wide}}  {count:{digits},}  {100 * count / total:5.1f} %" for name, count in shown),
        *([f"  ... and {unshown:,} more"] if unshown > 0 else []),
        *([look.form] if look.form else []),
    ]


def _length_lines(look: Look) -> list[str]:
    if not look.lengths:
        return []
    highest = max(count for _, _, count in look.lengths)
    bars = "".join(_BARS[-(-count * len(_BARS) // highest) - 1] if count else " " for _, _, count in look.lengths)
    notes = [f"tokens per text: {look.lengths[0][0]} {bars} {look.longest}, mean {look.mean:.1f}"]
    if look.over_long:
        share = 100 * look.over_long / look.rows
        are = "is" if look.over_long == 1 else "are"
        notes.append(f"{_counted(look.over_long, 'text')} ({share:.1f} %) {are} longer than {look.max_length} tokens")
    return notes


def _warnings(look: Look) -> list[str]:
    warnings = []
    if look.empty:
        warnings.append(f"{_counted(look.empty, 'text')} {'is' if look.empty == 1 else 'are'} empty")
    if look.duplicates_within:
        warnings.append(f"{_counted(look.duplicates_within, 'row repeats', 'rows repeat')} the text of an earlier row")
    if look.conflicting:
        warnings.append(f"{_counted(look.conflicting, 'text appears', 'texts appear')} with more than one label")
    for name, count in look.shared.items():
        if count:
            appear = "appears" if count == 1 else "appear"
            warnings.append(f"{count:,} of {_counted(look.sizes[name], f'{name} row')} also {appear} in train")
    return warnings + odd_labels(look.labels, look.kind)


def odd_labels(counts: Mapping[str, int], kind: str) -> list[str]:
    """What is strange about the classes: several that look like one, one that means "no label", or many of one row."""
    alike: dict[str, list[str]] = {}
    if kind == "tag":
        return []
    for label in counts:
        folded = _fold(label)
        alike.setdefault(_SAME.get(folded, folded), []).append(label)
    oddities = [
        f"{_listed(names, counts)} look like one {kind}; they are trained as {len(names)}"
        for names in alike.values()
        if len(names) > 1
    ] + [
        f"{_listed([label], counts)} is treated as a {kind}; if it means that there is no label, remove these rows"
        for label in counts
        if label.strip().lower() in _NOTHING
    ]
    alone = sum(1 for count in counts.values() if count == 1)
    if kind == "class" and len(counts) >= _MANY and 2 * alone > len(counts):
        oddities.append(f"{alone:,} of {len(counts):,} classes have only one row; --label names another column")
    return oddities


def tag_form(tags: Collection[str]) -> str:
    """Which of the usual ways of writing entities these tags follow."""
    starts = {tag[:2] for tag in tags if tag != "O"}
    kinds = sorted({tag[2:] for tag in tags if tag[2:] and tag[:2] in _ENTITY})
    if not starts or not starts <= _ENTITY:
        return "tags: one for every word, no entities; scored by accuracy over words"
    scheme = "BIOES" if starts & {"E-", "S-"} else "BIO" if "B-" in starts else "IO"
    entities = _counted(len(kinds), "kind of entity", "kinds of entities")
    return f"tags: {scheme}, {entities} ({', '.join(map(_shortened, kinds[:_SHOWN]))}); scored by F1 over entities"


def _listed(names: Sequence[str], counts: Mapping[str, int]) -> str:
    shown = [f"{_shortened(name)!r} ({_counted(counts[name], 'row')})" for name in names]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _counted(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def _shortened(label: str) -> str:
    """One line of printable text, however long the label is."""
    line = one_line(label)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."
