"""Two adapters side by side: numbers against torch's own, sparse against dense, and what cannot be compared."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from inlay.bank import sparse
from inlay.errors import AdapterError
from inlay.library.diff import Place, cards, compare, weights


def tensors(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = {"layers.0.ffn.out.down": (6, 4), "layers.0.ffn.out.up": (4, 6), "layers.10.attn.norm.gamma": (6,)}
    shapes |= {"layers.2.attn.norm.gamma": (6,), "head.weight": (6, 2), "head.bias": (2,)}
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


def by_name(places: list[Place]) -> dict[str, Place]:
    return {place.name: place for place in places}


def test_numbers_are_those_of_torch():
    a, b = tensors(0), tensors(1)
    places, total, same = weights(a, b)
    assert not same
    assert [p.name for p in places] == ["layers.0.ffn.out", "layers.2.attn.norm", "layers.10.attn.norm", "head"]
    for place, prefix in [(places[0], "layers.0.ffn.out."), (places[3], "head."), (total, "")]:
        x = torch.cat([v.flatten() for n, v in sorted(a.items()) if n.startswith(prefix)])
        y = torch.cat([v.flatten() for n, v in sorted(b.items()) if n.startswith(prefix)])
        assert place.norm_a == pytest.approx(x.norm().item(), rel=1e-6)
        assert place.norm_b == pytest.approx(y.norm().item(), rel=1e-6)
        assert place.difference == pytest.approx(((y - x).norm() / x.norm()).item(), rel=1e-5)
        assert place.cosine == pytest.approx(torch.cosine_similarity(x, y, dim=0).item(), abs=1e-6)


def test_the_same_weights_in_another_dtype_are_near_and_not_the_same():
    a = tensors()
    places, total, same = weights(a, a)
    assert same
    assert {(p.difference, p.note) for p in places} == {(0.0, "")}
    assert total.cosine == pytest.approx(1.0)
    half = {name: value.half() for name, value in a.items()}
    _, total, same = weights(a, half)
    assert not same
    assert total.difference is not None
    assert 0 < total.difference < 1e-3


@pytest.mark.parametrize(("one", "other"), [("sparse", "sparse"), ("sparse", "dense"), ("dense", "sparse")])
def test_sparse_tensors_stand_for_dense_ones(one: str, other: str):
    random = torch.Generator().manual_seed(3)
    a, b = (torch.randn(5, 4, generator=random) * (torch.rand(5, 4, generator=random) > 0.6) for _ in range(2))
    stored = {
        side: {"w.x": dense} if kind == "dense" else sparse.encode("w.x", dense)
        for side, kind, dense in (("a", one, a), ("b", other, b))
    }
    found, _, _ = weights(stored["a"], stored["b"])
    expected, _, _ = weights({"w.x": a}, {"w.x": b})
    assert [p.name for p in found] == ["w"]
    for key in ("norm_a", "norm_b", "difference", "cosine"):
        assert getattr(found[0], key) == pytest.approx(getattr(expected[0], key))


def test_positions_outside_a_tensor_are_an_error():
    bad = {"w.x#index": torch.tensor([99], dtype=torch.int32), "w.x#value": torch.ones(1)}
    with pytest.raises(AdapterError, match="positions outside its 4 elements"):
        weights(bad, {"w.x": torch.ones(4)})
    with pytest.raises(AdapterError, match="as many positions as values"):
        weights({**bad, "w.x#value": torch.ones(2)}, {"w.x": torch.ones(4)})


def test_what_cannot_be_compared_says_why():
    a, b = tensors(0), tensors(1)
    b["layers.0.ffn.out.down"] = torch.ones(6, 3)
    del b["layers.2.attn.norm.gamma"], b["head.bias"]
    places, total, same = weights(a, b)
    found = by_name(places)
    assert not same
    assert found["layers.0.ffn.out"].note == "shapes 6 x 4 and 6 x 3"
    assert found["layers.0.ffn.out"].difference is None
    assert (found["layers.2.attn.norm"].norm_b, found["layers.2.attn.norm"].difference) == (None, None)
    assert found["head"].note == "only one has bias"
    assert total.norm_a == found["layers.10.attn.norm"].norm_a  # what both have


def test_from_nothing_to_something():
    (place,), _, _ = weights({"head.bias": torch.zeros(2)}, {"head.bias": torch.ones(2)})
    assert place.difference is not None
    assert math.isinf(place.difference)
    assert place.cosine is None


def test_cards_field_by_field():
    a = {"name": "x", "version": 1, "sha256": "1", "labels": ["a"], "metrics": {"validation": {"f1": 0.5, "mcc": 0.1}}}
    b = {"name": "y", "version": 2, "sha256": "2", "labels": ("a",), "metrics": {"validation": {"f1": 0.7, "mcc": 0.1}}}
    b |= {"config": {"lr": 0.1, "seed": 1}, "seed": 1}
    assert cards(a, b) == {"metrics.validation.f1": (0.5, 0.7), "config.lr": (None, 0.1), "seed": (None, 1)}
    assert compare({}, {}, a, a).fields == {}


def test_members_of_ensembles_field_by_field():
    one = {"name": "a", "sha256": "1", "method": "lora", "history": [1], "config": {"seed": 1, "lr": 0.1}}
    two = {**one, "name": "b", "sha256": "2", "method": "norms", "config": {"seed": 2, "lr": 0.2}}
    first, second = ({"method": "ensemble", "members": [one, other]} for other in (one, two))
    found = {"members.2.method": ("lora", "norms"), "members.2.config.lr": (0.1, 0.2)}
    assert cards(first, second) == found
    assert cards({"method": "ensemble"}, second) == {"members": (None, ["a", "b"])}
