"""Seeded, stable splits over row indices.

Each row gets a random number from the seed and its index alone; training rows are taken from the low end of that
order and validation rows from the high end. So the train sets of growing sizes are nested and the validation rows
stay the same (up to rounding, where classes are kept in proportion), and rows added at a file's end do not reorder
the others. Only `random.Random.random` is used: its sequence is the one that Python promises never to change.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from inlay.errors import RunError

DEFAULT_SHARE = Fraction(1, 10)
DEFAULT_MOST = 2000


def size(text: str | int | float | None, rows: int, option: str) -> int:
    """A count of rows from "1000", "10%" or 0.1; None is all of them. A share is rounded to the nearest row."""
    if rows < 1:
        raise RunError(f"{option}: there are no rows to take from")
    if text is None:
        return rows
    count = _read_size(text, rows)
    if count is None:
        raise RunError(f"{option} {text} is not a size; write a count such as 1000 or a share such as 10%")
    if count < 1:
        raise RunError(f"{option} {text} of {rows} rows is less than one row")
    if count > rows:
        raise RunError(f"{option} {text} is more than the {rows} rows there are")
    return count


def is_size(text: str | int | float) -> bool:
    """Whether it is a count of rows or a share of them, however many rows there are."""
    return _read_size(text, 1) is not None


def take(rows: int, n: int, seed: int, strata: Sequence[str] | None = None) -> list[int]:
    """`n` of the rows in ascending order; with `strata` (a label per row) each class in proportion.

    Proportion is by largest remainder; every class gets a row when there are at least as many as classes.
    """
    if not 0 <= n <= rows:
        raise RunError(f"{n} rows cannot be taken from {rows}")
    units = _units(rows, seed, strata, None)
    chosen, _ = _fill(units, _allot(_rows_by_label(units), n, seed))
    return sorted(chosen)


def for_test(
    rows: int, test_size: str | int | float, stratify: Sequence[str] | None, groups: Sequence[str] | None
) -> tuple[list[int], list[int]]:
    """(the others, test), each in ascending order: the same for every seed, so that scores of seeds compare.

    Classes and groups are treated as in `split`.
    """
    n = size(test_size, rows, "--test-size")
    if n > rows - 2:
        raise RunError(f"--test-size {test_size} of {rows} rows leaves fewer than 2 for training and validation")
    units = _units(rows, 0, stratify, groups)
    if len(units) < 3:
        raise RunError(f"--test-size {test_size}: the {rows} rows have only {len(units)} different texts; expected 3")
    test, left = _hold_out(units, rows - n, n, 0)
    return sorted(row for unit in left for row in unit.rows), sorted(test)


def split(
    rows: int,
    seed: int,
    *,
    train_size: str | int | float | None = None,
    val_size: str | int | float | None = None,
    stratify: Sequence[str] | None,
    groups: Sequence[str] | None = None,
    of: int | None = None,
) -> tuple[list[int], list[int]]:
    """(train, validation), each in ascending order; shares are of all rows, or of `of` rows.

    Validation comes from the rows that `train_size` leaves over, and without `train_size` training has all the
    others. No `val_size` means 10 %, at least 1 and at most 2000. A class too rare for both is in train. With
    `groups` (say, identical texts) no group straddles: a size is then met from below, or by the smallest group
    where none fits.
    """
    n_train, n_val = _read_sizes(rows, train_size, val_size, of or rows)
    units = _units(rows, seed, stratify, groups)
    if len(units) < 2:
        raise RunError(f"all {rows} rows belong together, so none can be held out for validation; pass --val FILE")
    validation, left = _hold_out(units, n_train, n_val, seed)
    rest = sorted(row for unit in left for row in unit.rows)
    if train_size is None or n_train >= len(rest):
        return rest, sorted(validation)
    strata = None if stratify is None else [stratify[row] for row in rest]
    # row by row: a text that is there thirty times would otherwise come with all its copies
    return [rest[i] for i in take(len(rest), n_train, seed, strata)], sorted(validation)


def folds(
    rows: int, number: int, seed: int, stratify: Sequence[str] | None, groups: Sequence[str] | None = None
) -> list[list[int]]:
    """All rows in `number` parts of about the same size, each in ascending order, with the classes in proportion.

    No group straddles; there are fewer parts if there are fewer groups.
    """
    units = _units(rows, seed, stratify, groups)
    if len(units) < 2:
        raise RunError(f"all {rows} rows belong together, so they cannot be split into folds; pass --val FILE")
    parts: list[list[int]] = [[] for _ in range(min(number, len(units)))]
    # class by class, the largest groups first, each to the smallest part so far of those with fewest rows of its class
    classes = list(dict.fromkeys(unit.label for unit in units))
    for label in sorted(classes):
        rows_of_label = [0] * len(parts)
        for unit in sorted((u for u in units if u.label == label), key=lambda unit: -len(unit.rows)):
            part = min(range(len(parts)), key=lambda i: (rows_of_label[i], len(parts[i])))
            parts[part] += unit.rows
            rows_of_label[part] += len(unit.rows)
    return [sorted(part) for part in parts]


@dataclass(slots=True)
class _Unit:
    """Rows that stay together, and their class: that of the first."""

    label: str
    rows: list[int] = field(default_factory=list)


def _units(rows: int, seed: int, strata: Sequence[str] | None, groups: Sequence[str] | None) -> list[_Unit]:
    """All rows, in the seed's order."""
    for name, values in (("labels", strata), ("groups", groups)):
        if values is not None and len(values) != rows:
            raise RunError(f"{len(values)} {name} for {rows} rows; each row needs one")
    draw = random.Random(f"inlay rows {seed}").random
    order = [draw() for _ in range(rows)]
    units: dict[str | int, _Unit] = {}
    for row in range(rows):
        key = row if groups is None else groups[row]
        unit = units.get(key)
        if unit is None:
            unit = units[key] = _Unit("" if strata is None else strata[row])
        unit.rows.append(row)
    return sorted(units.values(), key=lambda unit: order[unit.rows[0]])


def _rows_by_label(units: Iterable[_Unit]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for unit in units:
        counts[unit.label] += len(unit.rows)
    return dict(sorted(counts.items()))


def _allot(counts: Mapping[str, int], n: int, seed: int) -> dict[str, int]:
    """Rows of each class out of `n`, at least one each where `n` allows it.

    A class whose share is less than a row gets one first; the others then share what is left, and again.
    """
    present = {label: count for label, count in counts.items() if count}
    shares = dict.fromkeys(counts, 0)
    if n >= len(present):
        while rare := [label for label, count in present.items() if n * count < sum(present.values())]:
            for label in rare:
                shares[label] = 1
                del present[label]
            n -= len(rare)
    total = sum(present.values())
    draw = random.Random(f"inlay classes {seed}").random
    rank = {label: (-(n * count % total), draw()) for label, count in present.items()}
    for label, count in present.items():
        shares[label] = n * count // total
    missing = n - sum(shares[label] for label in present)
    for label in sorted(present, key=rank.__getitem__)[:missing]:
        shares[label] += 1
    return shares


def _hold_out(units: Sequence[_Unit], kept: int, n: int, seed: int) -> tuple[list[int], list[_Unit]]:
    """`n` rows from the end of the seed's order, and the units left; a class too rare for both is among those."""
    counts = _rows_by_label(units)
    for_kept = _allot(counts, kept, seed)
    return _fill(units[::-1], _allot({label: counts[label] - for_kept[label] for label in counts}, n, seed))


def _fill(units: Sequence[_Unit], shares: Mapping[str, int]) -> tuple[list[int], list[_Unit]]:
    """Take units in order while they fit the share of their class: the rows taken, and the units left."""
    room = dict(shares)
    taken: list[int] = []
    left: list[_Unit] = []
    for unit in units:
        if len(unit.rows) <= room[unit.label]:
            room[unit.label] -= len(unit.rows)
            taken += unit.rows
        else:
            left.append(unit)
    if not taken and any(shares.values()):
        of_class = Counter(unit.label for unit in left)
        smallest = min(left, key=lambda unit: (of_class[unit.label] == 1, len(unit.rows)))  # not a class's only text
        return list(smallest.rows), [unit for unit in left if unit is not smallest]
    return taken, left


def _read_sizes(
    rows: int, train_size: str | int | float | None, val_size: str | int | float | None, of: int
) -> tuple[int, int]:
    if rows < 2:
        raise RunError(f"a validation set needs at least 2 rows to split, not {rows}; pass --val FILE")
    n_train = rows if train_size is None else size(train_size, of, "--train-size")
    if val_size is None:
        n_val = min(max(round(of * DEFAULT_SHARE), 1), DEFAULT_MOST)
        if train_size is not None:
            n_val = min(n_val, rows - n_train)
    else:
        n_val = size(val_size, of, "--val-size")
    if train_size is None:
        n_train = rows - n_val
    if n_val < 1:
        raise RunError(f"--train-size {train_size} takes all {rows} rows and leaves none for validation")
    if n_train < 1:
        raise RunError(f"--val-size {val_size} takes all {rows} rows and leaves none for training")
    if n_train + n_val > rows:
        raise RunError(f"--train-size {train_size} and --val-size {val_size} need {n_train + n_val} of {rows} rows")
    return n_train, n_val


def _read_size(text: str | int | float, rows: int) -> int | None:
    """A whole number is a count, anything up to 1 with a point is a share; None for what is neither."""
    if isinstance(text, bool):
        return None
    written = str(text).strip()
    if re.fullmatch(r"[0-9]{1,18}", written, re.ASCII):
        return int(written)
    match = re.fullmatch(r"([0-9]{0,18}\.?[0-9]{1,18}(?:e-?[0-9]{1,2})?)\s*(%?)", written, re.ASCII)
    if match is None:
        return None
    share = Fraction(match[1]) / (100 if match[2] else 1)
    if share > 1:
        return max(round(share * rows), rows + 1) if match[2] else None
    return round(share * rows)
