"""States of every layer: the bare base's are those that transformers gives, an adapter's end where `hidden` ends."""

from __future__ import annotations

import pytest
import tiny
import torch

from inlay.engine.watch import layer_states


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
def test_the_base_as_transformers_has_it(name: str) -> None:
    model = tiny.model(name)
    batch = tiny.batch(4)
    rows = tiny.rows_of(batch)
    with torch.no_grad():
        expected = [model(input_ids=row.view(1, -1).to(tiny.DEVICE), output_hidden_states=True) for row in rows]
    host = tiny.host(name)
    for own, known in zip(layer_states(host, batch, [None] * 4), expected, strict=True):
        last = known.last_hidden_state[0]
        middle = torch.stack([h[0] for h in known.hidden_states[:-1]])
        tiny.assert_close(own[:-1], middle, name)
        tiny.assert_close(own[-1], last, name)


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "gpt2"])
def test_adapters_of_every_kind_in_one_batch(name: str) -> None:
    """Each row is what it is alone, and ends as `Host.hidden` says; below an adapted layer it is the base's."""
    host = tiny.host(name)
    methods = {"low": "houlsby:size=4", "high": "houlsby:size=4,layers=2", "tuned": "finetune", "mixed": "frozen"}
    for own, method in methods.items():
        host.add(own, method)
        tiny.shake(host, own)
    names = ["tuned", None, "high", "low", "mixed", "high"]
    batch = tiny.batch(6)
    found = layer_states(host, batch, names)
    with torch.no_grad():
        for states, last in zip(found, host.hidden(batch, names).rows(), strict=True):
            tiny.assert_close(states[-1], last)
    base = layer_states(host, batch, [None] * 6)
    for row in (2, 5):
        tiny.assert_close(found[row][:3], base[row][:3])
        assert (found[row][3] - base[row][3]).abs().max() > 1e-3
    assert (found[3][1] - base[3][1]).abs().max() > 1e-3
