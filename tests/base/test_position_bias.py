"""MPNet computes attention itself, with a bias by distance: packed, it gives what transformers' own code gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny
import torch
from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import inlay
from inlay.base import arch
from inlay.base.attention import RowBounds
from inlay.base.sites import resolve
from inlay.errors import ArchError

LENGTHS = [1, 150, 17, 31, 32, 3, 17, 16, 140]
"""Beyond 128 all distances share one bias."""
SHAPE = {"max_position_embeddings": 160, "hidden_size": 32, "num_hidden_layers": 2}


def rows() -> list[list[int]]:
    random = torch.Generator().manual_seed(0)
    return [torch.randint(5, tiny.VOCABULARY, (n,), generator=random).tolist() for n in LENGTHS]


def targets() -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(n, 32, generator=random).to(tiny.DEVICE) for n in LENGTHS]


def test_packed_rows_give_states_and_gradients_of_transformers_own():
    model = tiny.model("mpnet", **SHAPE)
    model.requires_grad_(True)
    alone = [model(input_ids=torch.tensor([row], device=tiny.DEVICE)).last_hidden_state[0] for row in rows()]
    torch.stack([(a * t).sum() for a, t in zip(alone, targets(), strict=True)]).sum().backward()
    host = tiny.host("mpnet", **SHAPE)
    host.add("a", "finetune")
    found = host.hidden(inlay.Batch.of(rows()), ["a"] * len(LENGTHS), packed=True).rows()
    for mine, theirs in zip(found, alone, strict=True):
        tiny.assert_close(mine, theirs)
    torch.stack([(a * t).sum() for a, t in zip(found, targets(), strict=True)]).sum().backward()
    gradients = host.gradients("a")
    for name, p in model.named_parameters():
        if p.grad is not None:
            tiny.assert_close(gradients[name], p.grad, name, gradient=True)
    assert gradients["encoder.relative_attention_bias.weight"].abs().max() > 0.1


def test_the_bias_matters_and_is_as_large_as_the_longest_row(monkeypatch):
    made = []
    plain = MPNetEncoder.relative_position_bucket

    def noted(relative_position: Tensor, **options: int) -> Tensor:
        made.append(tuple(relative_position.shape))
        return plain(relative_position, **options)

    monkeypatch.setattr(MPNetEncoder, "relative_position_bucket", staticmethod(noted))
    host, batch = tiny.host("mpnet"), inlay.Batch.of([[5, 6, 7, 8]] * 30)
    host.forward.kernels = False
    before = host.hidden(batch, [None] * 30).states
    assert made == [(4, 4)], "not [tokens, tokens], and once for all layers"
    with torch.no_grad():
        host.base.model.encoder.relative_attention_bias.weight[1:] += 1
    assert (host.hidden(batch, [None] * 30).states - before).abs().max() > 1e-2


@pytest.mark.parametrize("lengths", [[4, 4], [1, 9, 3, 16]])
def test_masks_hold_the_bias_of_every_pair_of_a_row(lengths):
    bounds = RowBounds(lengths, tiny.DEVICE, longest=20)
    table = torch.randn(2, 39, device=tiny.DEVICE)
    distance = torch.arange(20, device=tiny.DEVICE)[None, :] - torch.arange(20, device=tiny.DEVICE)[:, None]
    bounds.add_bias(table[:, distance + 19])
    assert torch.equal(bounds.bias, table)
    (mask,) = bounds.biased
    assert mask.shape == (1 if lengths == [4, 4] else 4, 2, max(lengths), max(lengths))
    for row, n in zip(mask.expand(len(lengths), -1, -1, -1), lengths, strict=True):
        assert torch.equal(row[:, :n, :n], table[:, distance[:n, :n] + 19])
        assert (row[:, :, n:] == -torch.inf).all()


def test_positions_are_counted_on_the_device_of_the_states():
    found: list[Tensor] = []
    host = tiny.host("mpnet")
    host.forward.wiring.current = SimpleNamespace(rows=SimpleNamespace(longest=4, add_bias=found.append))
    host.forward.wiring._position_bias(lambda x: [torch.arange(x.shape[1])])(torch.empty(1, 4, 8, device="meta"))
    assert found[0].device.type == "meta"


def test_a_closed_host_leaves_the_model_as_it_was():
    model = tiny.model("mpnet")
    host = inlay.Host(model)
    assert "compute_position_bias" in model.encoder.__dict__
    host.close()
    assert "compute_position_bias" not in model.encoder.__dict__
    assert "forward" not in model.encoder.layer[0].attention.attn.__dict__


def test_a_row_of_the_table_with_a_wrong_path_is_refused():
    model, row = tiny.model("mpnet"), arch.find("mpnet")
    with pytest.raises(ArchError, match=r"no 'encoder\.layer\.0\.attention\.other' \(own_attention\)"):
        resolve(model, replace(row, own_attention="attention.other"))
    with pytest.raises(ArchError, match=r"no function 'encoder\.bias' \(position_bias\)"):
        resolve(model, replace(row, position_bias="encoder.bias"))
