"""Batches: rows kept flat, taken in any order, never empty."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

import inlay
from inlay.data.batch import Batch, ramp
from inlay.errors import InlayError

ROWS, TYPES = [[5, 6, 7], [8], [9, 10]], [[0, 0, 1], [1], [0, 1]]


def rows_of(batch: Batch) -> list[list[int]]:
    return [part.tolist() for part in np.split(batch.ids, batch.lengths.cumsum()[:-1])]


def types_of(batch: Batch) -> list[list[int]]:
    assert batch.types is not None
    return [part.tolist() for part in np.split(batch.types, batch.lengths.cumsum()[:-1])]


def test_rows_lie_one_after_the_other():
    batch = Batch.of(ROWS, TYPES)
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.ids.dtype == np.int32
    assert types_of(batch) == TYPES
    assert Batch.of(ROWS).types is None
    assert inlay.Batch is Batch


@pytest.mark.parametrize("order", [[2, 0, 1], [1], [0, 0, 2], [2, 1, 0], [-1]])
def test_rows_are_taken_in_any_order_with_their_types(order):
    taken = Batch.of(ROWS, TYPES).take(order)
    assert rows_of(taken) == [ROWS[i] for i in order]
    assert types_of(taken) == [TYPES[i] for i in order]
    assert taken.lengths.tolist() == [len(ROWS[i]) for i in order]
    assert Batch.of(ROWS).take(order).types is None


def test_taking_leaves_the_batch_as_it_was():
    batch = Batch.of(ROWS, TYPES)
    batch.take([2, 0])
    assert rows_of(batch) == ROWS
    assert types_of(batch) == TYPES


@pytest.mark.parametrize(
    ("rows", "types", "problem"),
    [
        ([], None, "the batch has no rows"),
        ([[]], None, "row 0 of the batch has no tokens"),
        ([[1], [2], []], None, "row 2 of the batch has no tokens"),
        ([[1], [2, 3]], [[0], [0]], "token types and ids differ in length"),
        ([[1], [2, 3]], [[0, 0], [0]], "token types and ids differ in length"),
        ([[1], [2, 3]], [[0]], "token types and ids differ in length"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(rows, types, problem):
    with pytest.raises(InlayError) as caught:
        Batch.of(rows, types)
    assert str(caught.value) == problem


def window(numbers: list[int], code: str) -> memoryview:
    """As rows that runs share have them, in the middle of others."""
    return memoryview(array(code, [99, *numbers, 99]))[1:-1].toreadonly()


@pytest.mark.parametrize("which", [(0, 1, 2), (1,), (0, 2), ()])
def test_windows_and_lists_give_the_same_batch(which):
    rows = [window(row, "i") if i in which else row for i, row in enumerate(ROWS)]
    types = [window(row, "B") if i in which else row for i, row in enumerate(TYPES)]
    batch = Batch.of(rows, types)
    assert rows_of(batch) == ROWS
    assert types_of(batch) == TYPES
    assert batch.types is not None
    assert batch.ids.dtype == batch.types.dtype == np.int32


def test_windows_of_other_forms_are_read_too():
    others = [
        memoryview(array("q", [5, 0, 6, 0, 7]))[::2],
        memoryview(array("h", [8])),
        memoryview(array("i", [9, 10])),
    ]
    assert rows_of(Batch.of(others)) == ROWS
    assert rows_of(Batch.of([memoryview(array("i", [5, 0, 6, 0, 7]))[::2], others[2]])) == [ROWS[0], ROWS[2]]


@pytest.mark.parametrize("counts", [[2, 0, 3], [0, 1], [4], [0, 0], [], [1, 0]])
def test_a_ramp_counts_anew_for_every_length(counts):
    lengths = np.array(counts, dtype=np.int64)
    assert ramp(lengths).tolist() == [i for n in counts for i in range(n)]
    starts = np.arange(len(counts)) * 10
    assert ramp(lengths, starts).tolist() == [10 * row + i for row, n in enumerate(counts) for i in range(n)]
