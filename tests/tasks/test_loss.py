"""Losses on tensors: against torch's own, for one run and for many runs of different sizes in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from inlay.base.words import words_of
from inlay.registry import tasks
from inlay.tasks import NOTHING, Row, Targets, at_units, first_tokens, parse, shares
from inlay.tasks.classification import Classification

HIDDEN_NOT = -100
EMPTY = 3
"""How many units of no run are in a call for many."""
Numbers = Callable[[int, int], list[int]]
"""(below, how many) -> random numbers."""


@dataclass(frozen=True)
class LossCase:
    """What these tests need to know of a task."""

    target: Callable[[int, int, int, Numbers], tuple[Any, Any]]
    """(which row, its tokens, labels, random numbers) -> its target and aux."""
    oracle: Callable[[Run, Any], Tensor]
    """The loss as one would write it from rows."""
    width: int | None = None
    """Of its outputs; None for one per label."""
    weighted: bool = False


@pytest.fixture(scope="module")
def base() -> Any:
    return tiny.text_host().base


@dataclass
class Run:
    """Rows with random targets and outputs, as one run has them in a step."""

    name: str
    rows: list[Row]
    outputs: list[Tensor]
    weights: list[float] | None = None

    def flat(self) -> Tensor:
        """[outputs, width]"""
        return torch.cat(self.outputs) if parse(self.name).per_token else torch.stack(self.outputs)


def random_run(name: str, labels: int, seed: int, weighted: bool = False) -> Run:
    random = torch.Generator().manual_seed(seed)

    def numbers(below: int, n: int) -> list[int]:
        found: list[int] = torch.randint(below, (n,), generator=random).tolist()
        return found

    rows, case = [], LOSSES[name]
    for i, n in enumerate((5, 9, 2, 4, 7)[: 3 + seed % 3]):
        target, aux = case.target(i, n, labels, numbers)
        rows.append(Row([0] * n, target=target, aux=aux))
    width = case.width or labels
    shapes = [(len(row.ids), width) if parse(name).per_token else (width,) for row in rows]
    outputs = [torch.randn(shape, generator=random).to(tiny.DEVICE).requires_grad_() for shape in shapes]
    weights = (torch.rand(labels, generator=random) + 0.2).tolist() if weighted else None
    return Run(name, rows, outputs, weights)


def oracle(run: Run, base: Any) -> Tensor:
    return LOSSES[run.name].oracle(run, base)


def on_device(values: Any) -> Tensor:
    return torch.tensor(values, device=tiny.DEVICE)


def classes_of(run: Run, base: Any) -> Tensor:
    weights = None if run.weights is None else on_device(run.weights)
    return F.cross_entropy(torch.stack(run.outputs), on_device([r.target for r in run.rows]), weights)


def labels_of(run: Run, base: Any) -> Tensor:
    weights = None if run.weights is None else on_device(run.weights)
    given = on_device([r.target for r in run.rows])
    return F.binary_cross_entropy_with_logits(torch.stack(run.outputs), given, weights)


def values_of(run: Run, base: Any) -> Tensor:
    return F.mse_loss(torch.cat(run.outputs), on_device([r.target for r in run.rows]))


def ends_of(run: Run, base: Any) -> Tensor:
    pairs = zip(run.outputs, run.rows, strict=True)
    each = [F.cross_entropy(o[:, side][None], on_device([r.target[side]])) for o, r in pairs for side in (0, 1)]
    return torch.stack(each).mean()


def tags_of(run: Run, base: Any) -> Tensor:
    logits = torch.cat([o[[piece for piece, _ in r.aux]] for o, r in zip(run.outputs, run.rows, strict=True)])
    weights = None if run.weights is None else on_device(run.weights)
    return F.cross_entropy(logits, on_device([t for r in run.rows for t in r.target]), weights)


def words(run: Run, base: Any) -> Tensor:
    known, bias = words_of(base)
    logits = F.linear(torch.cat(run.outputs).to(known), known, bias).float()
    return F.cross_entropy(logits, on_device([t for r in run.rows for t in r.target]))


def tagged(i: int, n: int, labels: int, numbers: Numbers) -> tuple[Any, Any]:
    aux = [(piece, word) for word, piece in enumerate(range(1, n - 1, 2))]  # the row of two has no word
    return numbers(labels, len(aux)), aux


def hidden(i: int, n: int, labels: int, numbers: Numbers) -> tuple[Any, Any]:
    pieces = [piece % 3 == 1 and i != 1 for piece in range(n)]  # the second row hides nothing
    return [v if h else HIDDEN_NOT for v, h in zip(numbers(20, n), pieces, strict=True)], None


LOSSES = {
    "classification": LossCase(lambda i, n, labels, numbers: (numbers(labels, 1)[0], None), classes_of, weighted=True),
    "multilabel": LossCase(
        lambda i, n, labels, numbers: ([float(v) for v in numbers(2, labels)], None), labels_of, weighted=True
    ),
    "regression": LossCase(lambda i, n, labels, numbers: (numbers(1000, 1)[0] / 300 - 1.5, None), values_of, 1),
    "tagging": LossCase(tagged, tags_of, weighted=True),
    "qa": LossCase(lambda i, n, labels, numbers: (tuple(sorted(numbers(n, 2))), None), ends_of, 2),
    "mlm": LossCase(hidden, words, 16),
}
every_case = pytest.mark.parametrize(
    ("name", "weighted"), [(n, w) for n, case in LOSSES.items() for w in ((False, True) if case.weighted else (False,))]
)


def with_gradients(loss: Tensor, runs: Sequence[Run]) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, [o for run in runs for o in run.outputs])]


def padded(x: Tensor, shape: Sequence[int], value: float) -> Tensor:
    """At the end of every dimension."""
    room = [n for have, want in zip(reversed(x.shape), reversed(shape), strict=True) for n in (0, want - have)]
    return F.pad(x, room, value=value)


def widest(tensors: Sequence[Tensor]) -> list[int]:
    return [max(sizes) for sizes in zip(*(t.shape[1:] for t in tensors), strict=True)]


@dataclass
class Together:
    """Many runs as the arguments of one call, with a few units of no run at the end."""

    outputs: Tensor
    value: Tensor
    weight: Tensor
    units: list[int]


def together(runs: Sequence[Run], more: int = 3) -> Together:
    found: list[Targets] = [parse(run.name).targets(run.rows, run.weights) for run in runs]
    flats = [run.flat() for run in runs]
    width = max(f.shape[1] for f in flats) + more
    device = flats[0].device
    starts = [sum(len(f) for f in flats[:i]) for i in range(len(flats))]
    at = [torch.from_numpy(np.where(t.at < 0, -1, t.at + start)) for t, start in zip(found, starts, strict=True)]
    value, weight = [torch.from_numpy(t.value) for t in found], [torch.from_numpy(t.weight) for t in found]
    k, v = widest(at), widest(value)
    ats = torch.cat([padded(a, [len(a), *k], -1) for a in at] + [torch.full((EMPTY, *k), -1)])
    values = [padded(own, [len(own), *v], 0) for own in value]
    flat = torch.cat([padded(f, [len(f), width], NOTHING) for f in flats])
    return Together(
        at_units(flat, ats.to(device)),
        torch.cat([*values, values[0].new_zeros(EMPTY, *v)]).to(device),
        torch.cat([*weight, torch.zeros(EMPTY)]).to(device),
        [len(t.at) for t in found],
    )


def test_every_task_has_a_case():
    assert set(LOSSES) == set(tasks.names())


@every_case
@pytest.mark.parametrize("labels", [2, 5])
def test_loss_and_gradient_are_torchs_own(name, weighted, labels, base):
    run = random_run(name, labels, 2, weighted)
    expected = with_gradients(oracle(run, base), [run])
    for weights in (run.weights, None if run.weights is None else torch.tensor(run.weights, device=tiny.DEVICE)):
        found = parse(name).loss(run.outputs, run.rows, base, weights)
        torch.testing.assert_close(with_gradients(found, [run]), expected)
    if weighted:  # a positive control: they matter
        without = parse(name).loss(run.outputs, run.rows, base)
        assert not torch.allclose(without, expected[0])


@every_case
def test_targets_are_arrays(name, weighted):
    run = random_run(name, 4, 2, weighted)
    found = parse(name).targets(run.rows, run.weights)
    assert found.at.dtype == np.int64
    assert found.value.dtype in (np.int64, np.float32)
    assert found.weight.dtype == np.float32
    assert found.weight.shape == found.at.shape[:1] == found.value.shape[:1]
    seen = found.at[found.at >= 0]
    assert len(np.unique(seen)) == len(seen)
    assert int(seen.max()) < len(run.flat())


@every_case
def test_many_runs_in_one_call_are_as_each_alone(name, weighted, base):
    runs = [random_run(name, labels, seed, weighted) for seed, labels in enumerate((3, 7, 2, 5))]
    call = together(runs)
    losses = parse(name).losses(call.outputs, call.value, base)
    assert losses.dtype == torch.float32
    assert losses.shape == (sum(call.units) + EMPTY,)
    assert torch.isfinite(losses).all()
    parts = torch.split(losses * call.weight, [*call.units, EMPTY])
    for run, part in zip(runs, parts, strict=False):
        torch.testing.assert_close(part.sum(), oracle(run, base))
    expected = with_gradients(sum((oracle(run, base) for run in runs), torch.zeros((), device=tiny.DEVICE)), runs)
    torch.testing.assert_close(with_gradients((losses * call.weight).sum(), runs), expected)


@every_case
def test_what_is_not_there_gets_no_gradient_at_all(name, weighted, base):
    call = together([random_run(name, labels, seed, weighted) for seed, labels in enumerate((3, 7, 2))])
    leaf = call.outputs.detach().clone().requires_grad_()
    (parse(name).losses(leaf, call.value, base) * call.weight).sum().backward()
    assert leaf.grad is not None
    missing = leaf <= NOTHING
    assert missing[-EMPTY:].all()
    assert missing[:-EMPTY].any()
    assert not leaf.grad[missing].any()
    assert leaf.grad[~missing].any()


@every_case
def test_wider_outputs_change_nothing(name, weighted, base):
    runs = [random_run(name, labels, seed, weighted) for seed, labels in enumerate((3, 7))]
    narrow, wide = (
        parse(name).losses(call.outputs, call.value, base)[:-EMPTY] for call in (together(runs, 0), together(runs, 40))
    )
    torch.testing.assert_close(wide, narrow)


class Peeking(Classification):
    """A loss that asks for a number, which stops the device and cannot be captured."""

    def losses(self, outputs: Tensor, value: Tensor, base: Any) -> Tensor:
        return super().losses(outputs, value, base) / value.max().item()


@every_case
def test_losses_need_no_data_of_the_host(name, weighted, base):
    """Tensors without data: whoever asks for a value, or makes a shape from one, is refused."""
    call = together([random_run(name, labels, seed, weighted) for seed, labels in enumerate((3, 7))])
    real = call.outputs.detach(), call.value
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        outputs, value = map(fake.from_tensor, real)
        assert parse(name).losses(outputs, value, base).shape == call.weight.shape
        if name == "classification":
            with pytest.raises(DataDependentOutputException):
                Peeking().losses(outputs, value, base)


@every_case
def test_targets_follow_the_order_of_rows(name, weighted, base):
    run = random_run(name, 4, 2, weighted)
    back = Run(name, run.rows[::-1], run.outputs[::-1], run.weights)
    torch.testing.assert_close(
        parse(name).loss(back.outputs, back.rows, base, run.weights),
        parse(name).loss(run.outputs, run.rows, base, run.weights),
    )
    every, first = (parse(name).targets(rows).value for rows in (run.rows, run.rows[:2]))
    assert np.array_equal(first, every[: len(first)])


def test_where_units_look():
    def at(name: str, *rows: Row) -> list[Any]:
        found: list[Any] = parse(name).targets(rows).at.tolist()
        return found

    assert at("classification", Row([1, 2], target=0), Row([1], target=1)) == [0, 1]
    words = Row([1, 2, 3], target=[0, 1], aux=[(1, 0), (2, 1)]), Row([1, 2], target=[], aux=[])
    assert at("tagging", *words, words[0]) == [1, 2, 6, 7]
    assert at("qa", Row([1, 2], target=(0, 1)), Row([1, 2, 3], target=(0, 0))) == [[0, 1, -1], [2, 3, 4]]
    assert at("mlm", Row([1, 2], target=[-100, 7]), Row([1, 2, 3], target=[5, -100, -100])) == [1, 2]


@pytest.mark.parametrize("name", ["tagging", "mlm"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0]])
def test_no_units_at_all_cost_nothing(name, weights, base):
    row = Row([1, 2], target=[] if name == "tagging" else [HIDDEN_NOT] * 2, aux=[])
    out = torch.randn(2, 16 if name == "mlm" else 2, device=tiny.DEVICE, requires_grad=True)
    loss = parse(name).loss([out], [row], base, weights)
    loss.backward()
    assert loss.item() == 0
    assert out.grad is not None
    assert not out.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at", [[3, 0, -1, 3], [[3, 0, -1], [-1, -1, -1], [3, 2, 1]], []])
def test_outputs_at_units(at, dtype):
    flat = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    where = torch.tensor(at, dtype=torch.long)
    found = at_units(flat, where)
    assert found.dtype == torch.float32
    assert found.shape == (*where.shape, 3)
    factor = torch.arange(found.numel()).view_as(found).to(dtype)
    (found * factor).sum().backward()
    expected = torch.zeros(4, 3, dtype=dtype)
    for one, number, f in zip(found.reshape(-1, 3), where.flatten().tolist(), factor.reshape(-1, 3), strict=True):
        assert torch.equal(one, torch.full((3,), -1e4) if number < 0 else flat[number].float())
        expected[number] += f if number >= 0 else 0
    torch.testing.assert_close(flat.grad, expected)


def test_an_output_that_is_not_there_hides_one_that_is_not_finite():
    flat = torch.full((2, 3), torch.inf, requires_grad=True)
    found = at_units(flat, torch.tensor([-1, -1]))
    found.softmax(-1).sum().backward()
    assert (found == NOTHING).all()
    assert flat.grad is not None
    assert not flat.grad.any()


def test_shares():
    none = np.array([], dtype=np.int64)
    assert shares(np.array([0, 1, 1, 0]), None).tolist() == [0.25] * 4
    assert shares(none, None).shape == shares(none, [1.0, 2.0]).shape == (0,)
    draw = np.random.default_rng(0)
    for units in (3, 16, 37, 200):  # to the bit what torch's own sum gives: runs are reproduced by it
        classes, weights = draw.integers(0, 3, units), draw.uniform(0.1, 9, 3).tolist()
        each = torch.tensor(weights)[torch.from_numpy(classes)]
        assert shares(classes, weights).tolist() == (each / each.sum()).tolist()


def test_first_tokens():
    assert first_tokens([Row([1, 2]), Row([]), Row([1, 2, 3]), Row([1])]).tolist() == [0, 2, 2, 5]
    assert first_tokens([]).tolist() == []


@pytest.mark.gpu
@every_case
def test_a_captured_loss_has_the_same_gradient_to_the_bit(name, weighted):
    base: Any = tiny.text_host().base
    base.model.to("cuda")
    call = together([random_run(name, labels, seed, weighted) for seed, labels in enumerate((3, 7, 2))])
    n, width = 50, call.outputs.shape[-1]
    flat = torch.randn(n, width, device="cuda", requires_grad=True)
    at = torch.randint(-1, n, call.outputs.shape[:-1], device="cuda")  # many units look at the same output
    value, weight = call.value.cuda(), call.weight.cuda() + 1

    def gradient() -> Tensor:
        loss = (parse(name).losses(at_units(flat, at), value, base) * weight).sum()
        return torch.autograd.grad(loss, flat)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = gradient()
        for _ in range(20):
            assert torch.equal(gradient(), expected)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = gradient()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)
