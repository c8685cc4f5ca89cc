"""Many tensors copied to the CPU at once are those that were given."""

import torch
from safetensors.torch import load, save

from inlay.base import copies


def some() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    wide = torch.randn(6, 8, generator=made)
    return {
        "view": wide[1:4, :5],
        "number": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "index": torch.arange(7),
        "trained": torch.nn.Parameter(torch.randn(3, 2, generator=made)),
        "half": torch.randn(4, generator=made).bfloat16(),
        "large": torch.randn(5, 5, generator=made),
    }


def test_copies_are_equal_in_order_and_independent(monkeypatch):
    monkeypatch.setattr(copies, "_SMALL", 20)
    given = some()
    found = copies.to_cpu(given)
    assert list(found) == list(given)
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert not found[name].requires_grad
        assert found[name].is_contiguous()
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=0)
    for tensor in given.values():
        tensor.detach().zero_()
    assert found["view"].abs().sum() > 0
    assert found["large"].abs().sum() > 0
    found["view"].zero_()
    assert found["trained"].abs().sum() > 0


def test_what_travelled_together_is_written_apart():
    given = some()
    read = load(save(copies.to_cpu(given)))
    assert {name: tuple(t.shape) for name, t in read.items()} == {name: tuple(t.shape) for name, t in given.items()}
