"""Representational similarity: against numpy by hand, in blocks, and of real states of a tiny model."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from training import work

from inlay.analysis.rsa import rsa, similarity
from inlay.base.load import load_tokenizer
from inlay.errors import DataError, RunError
from inlay.tasks import Example


def texts(n: int = 30) -> list[Example]:
    return [Example(row["text"], place=f"row {i}") for i, row in enumerate(work.texts(n))]


def by_hand(x: np.ndarray, y: np.ndarray) -> float:
    """Cosine matrices as a whole, and numpy's correlation over their upper triangles."""
    upper = np.triu_indices(len(x), 1)
    matrices = []
    for states in (x, y):
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        matrices.append((unit @ unit.T)[upper])
    return float(np.corrcoef(*matrices)[0, 1])


def states(n: int = 70, d: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_rotation_is_the_same_geometry_and_another_map_is_not() -> None:
    x = states()
    rotation = torch.linalg.qr(states(12, 12, 1))[0]
    stretch = torch.diag(torch.linspace(0.1, 3, 12, dtype=torch.float64))
    found = similarity(torch.stack([x, x @ rotation, x @ stretch, states(seed=2)]))
    assert found.diagonal().tolist() == pytest.approx([1.0] * 4)
    assert found[0, 1].item() == pytest.approx(1.0, abs=1e-6)
    assert found[0, 2].item() == pytest.approx(by_hand(x.numpy(), (x @ stretch).numpy()), abs=1e-6)
    assert found[2, 3].item() == pytest.approx(by_hand((x @ stretch).numpy(), states(seed=2).numpy()), abs=1e-6)
    assert found[0, 2].item() < 0.9, "a positive control: the stretch is seen"
    assert abs(found[0, 3].item()) < 0.2


@pytest.mark.parametrize("block", [1, 7, 69, 70, 1000])
def test_blocks_equal_the_whole(block: int) -> None:
    both = torch.stack([states(), states() + 0.7 * states(seed=1)])
    assert similarity(both, block)[0, 1].item() == pytest.approx(by_hand(*both.numpy()), abs=1e-6)


def test_states_that_all_point_one_way() -> None:
    """Cosines near 1, as in upper layers of real models: rounding must not eat the differences."""
    x = torch.ones(1, 12, dtype=torch.float64) + 0.05 * states()
    y = torch.ones(1, 12, dtype=torch.float64) + 0.05 * (states() + states(seed=3))
    assert similarity(torch.stack([x, y]))[0, 1].item() == pytest.approx(by_hand(x.numpy(), y.numpy()), abs=1e-3)
    same = torch.ones(70, 12)
    assert torch.isnan(similarity(torch.stack([same, x.float()]))[0, 1])


def test_an_adapter_that_does_nothing_is_the_base() -> None:
    host = tiny.text_host()
    host.add("fresh", "lora", labels=["neg", "pos"])
    found = rsa(host, ["fresh"], texts())
    assert [row[0] for row in found.rows] == [0, 1, 2, 3]
    assert [row[3] for row in found.rows] == pytest.approx([1.0] * 4, abs=1e-9)


def test_real_states_by_hand() -> None:
    """Every token of every text, without [CLS] and [SEP]; adapters and a fine-tuned model in one call."""
    host = tiny.text_host()
    for name, method in (("small", "houlsby:size=4"), ("tuned", "finetune")):
        host.add(name, method, labels=["neg", "pos"])
        tiny.shake(host, name)
    some = texts(12)
    found = rsa(host, ["small", "tuned"], some, where="planted texts")
    value = {(layer, a, b): number for layer, a, b, number in found.rows}
    last: dict[str | None, np.ndarray] = {}
    batch = host.batch([e.text for e in some])
    with torch.no_grad():
        for name in (None, "small", "tuned"):
            inner = [row[1:-1] for row in host.hidden(batch, [name] * len(some)).rows()]
            last[name] = torch.cat(inner).double().cpu().numpy()
    assert found.summary["tokens"] == len(last[None])
    depth = host.base.sites.depth
    expected = {("base", "small"): (None, "small"), ("small", "tuned"): ("small", "tuned")}
    for (a, b), (one, other) in expected.items():
        assert value[depth, a, b] == pytest.approx(by_hand(last[one], last[other]), abs=1e-4)
    assert value[0, "base", "small"] == pytest.approx(1.0), "an adapter leaves the embedding alone"
    assert value[0, "base", "tuned"] < 0.999, "fine-tuning does not"
    assert value[depth, "base", "small"] < 0.99


def test_tokens_are_drawn_by_the_seed() -> None:
    host = tiny.text_host()
    host.add("a", "houlsby:size=4", labels=["neg", "pos"])
    tiny.shake(host, "a")
    one, again, other = (rsa(host, ["a"], texts(), tokens=40, seed=seed).rows for seed in (1, 1, 2))
    assert one == again != other


def test_special_tokens_are_left_out_and_unknown_ones_stay() -> None:
    host = tiny.text_host()
    host.add("a", "houlsby:size=4", labels=["neg", "pos"])
    tokenizer = load_tokenizer(host.base)
    some = [Example("the film is good § fine", place="row")] * 5
    assert tokenizer.unk_token_id in tokenizer(some[0].text)["input_ids"]
    assert rsa(host, ["a"], some).summary["tokens"] == 5 * 6


def test_what_is_refused() -> None:
    host = tiny.text_host()
    host.add("a", "houlsby:size=4", labels=["neg", "pos"])
    with pytest.raises(DataError, match="3 tokens, which is too few"):
        rsa(host, ["a"], [Example("the good film")])
    with pytest.raises(RunError, match="5 tokens are too few"):
        rsa(host, ["a"], texts(), tokens=5)
    with pytest.raises(RunError, match="different adapters"):
        rsa(host, ["a", "a"], texts())
    host.add("base", "houlsby:size=4", labels=["neg", "pos"])
    with pytest.raises(RunError, match="another name"):
        rsa(host, ["base"], texts())
