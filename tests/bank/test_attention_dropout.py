"""Dropout of attention probabilities: an option of a run, keyed like all its noise, on rows that are padded for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from training import work

import inlay
from inlay.bank.noise import Keys, number
from inlay.kernels.shared import COLUMN_STRIDE, MULTIPLIERS, TOKEN_STRIDE, lane_cut
from inlay.runs.prepare import prepare
from inlay.training.job import Job
from inlay.training.memory import _bytes

P = 0.3
RATES = {
    "distilbert": {"attention_dropout": P},
    "gpt2": {"attn_pdrop": P},
    "llama": {"attention_dropout": P},
    "modernbert": {"attention_dropout": P},
}
NAMES = [name for name in tiny.CONFIGS if name not in ("roberta", "xlm-roberta", "qwen2")]


def host_of(name: str = "bert", **changes: Any) -> inlay.Host:
    host = tiny.host(name, **{**RATES.get(name, {"attention_probs_dropout_prob": P}), **changes})
    for i, adapter in enumerate("abc"):
        host.add(adapter, "houlsby:size=4" if adapter != "c" else "lora:rank=2", labels=3, seed=i)
        tiny.shake(host, adapter)
    return host


def keys_of(host: inlay.Host, names: str, dropping: str) -> Keys:
    keys = host.keys({name: (ord(name), 5) for name in names})
    return replace(keys, attention_dropout=frozenset(host.slot(name) for name in dropping))


@pytest.mark.parametrize("name", NAMES)
def test_a_mixed_batch_equals_each_alone(name: str):
    host, names = host_of(name), list("aabbcc")
    batch = tiny.batch(6, longest=20)
    with torch.no_grad():
        mixed = host.hidden(batch, names, keys_of(host, "abc", "ac")).rows()
        for adapter in "abc":
            own = [i for i, one in enumerate(names) if one == adapter]
            some = batch.take(own)
            keys = [keys_of(host, adapter, dropping) for dropping in (adapter, "")]
            drops, plain = (host.hidden(some, [adapter] * 2, one).rows() for one in keys)
            for place, with_, without in zip(own, drops, plain, strict=True):
                tiny.assert_close(mixed[place], without if adapter == "b" else with_)
                assert (with_ - without).abs().max() > 0.01


def test_rows_that_drop_nothing_stay_packed():
    host, batch = host_of(), tiny.batch(4)
    plans = host.forward.plan(batch, *_slots(host, "abca"), keys_of(host, "abc", "b"))
    assert [(one.attention_dropout, one.tokens.valid is None, one.rows.tolist()) for one in plans] == [
        (0.0, True, [0, 3, 2]),
        (P, False, [1]),
    ]
    quiet = replace(keys_of(host, "abc", "b"), without_dropout=frozenset({host.slot("b")}))
    for keys in (quiet, keys_of(host, "abc", "")):
        (only,) = host.forward.plan(batch, *_slots(host, "abca"), keys)
        assert (only.attention_dropout, only.tokens.valid) == (0.0, None)


def _slots(host: inlay.Host, names: str) -> tuple[Any]:
    import numpy as np

    return (np.array([host.slot(name) for name in names]),)


def signed(n: int) -> int:
    return (n + 2**31) % 2**32 - 2**31


def mixed(h: int) -> int:
    """lowbias32, in Python's own numbers."""
    h %= 2**32
    for shift, factor in ((16, MULTIPLIERS[0]), (15, MULTIPLIERS[1])):
        h = (h ^ (h >> shift)) * factor % 2**32
    return h ^ (h >> 16)


def factor(layer: int, token: int, head: int, key: int, heads: int) -> float:
    """What a probability is multiplied by: 0 or 1 / (1 - P)."""
    place = number("dropout", f"encoder.layer.{layer}.attention probabilities", layer)
    of_token = mixed(mixed(number(ord("a"), 5) ^ place) + token * TOKEN_STRIDE)
    column = key * heads + head
    bits = mixed(of_token + (column // 2) * COLUMN_STRIDE)
    lane = (bits >> 16 * (column % 2)) % 2**16
    return 0.0 if (lane + 2**15) % 2**16 - 2**15 < lane_cut(P) else 1 / (1 - P)


def test_it_is_a_plain_eager_attention_times_its_own_mask(monkeypatch: pytest.MonkeyPatch):
    from transformers.models.bert import modeling_bert

    if tiny.DEVICE.type != "cpu" or not tiny.EXACT:
        pytest.skip("compared on the CPU in fp32")
    host = host_of(hidden_dropout_prob=0.0)
    host.add("plain", "lora:rank=2")  # does nothing yet
    batch = tiny.batch(2, longest=9)
    slot = host.slot("plain")
    keys = Keys({slot: (ord("a"), 5)}, attention_dropout=frozenset({slot}))
    with torch.no_grad():
        found = host.hidden(batch, ["plain"] * 2, keys).rows()
    state = {n: p.clone() for n, p in host.base.model.state_dict().items()}
    model = type(host.base.model)(host.base.model.config).eval()
    model.load_state_dict(state)
    model.set_attn_implementation("eager")
    seen: list[float] = []

    def eager(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, dropout: float, **more: Any) -> Any:
        layer = len(seen) % 3
        weights = (q @ k.transpose(2, 3) * scaling).softmax(-1)
        heads, tokens = weights.shape[1], weights.shape[2]
        factors = [
            [[factor(layer, before + i, h, j, heads) for j in range(tokens)] for i in range(tokens)]
            for h in range(heads)
        ]
        kept = torch.tensor(factors)
        seen.append(float((kept == 0).float().mean()))
        return (weights * kept @ v).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", eager)
    before = 0
    for row in range(2):
        some = batch.take([row])
        ids, types = torch.as_tensor(some.ids)[None].long(), torch.zeros(1, len(some.ids)).long()
        if some.types is not None:
            types = torch.as_tensor(some.types)[None].long()
        with torch.no_grad():
            expected = model(input_ids=ids, token_type_ids=types).last_hidden_state[0]
        tiny.assert_close(found[row], expected)
        before += len(some.ids)  # a slot's tokens are counted over its rows
    assert len(seen) == 6
    assert sum(seen) / 6 == pytest.approx(P, abs=0.08)


def test_recomputed_layers_drop_the_same():
    gradients = []
    for checkpointing in (False, True):
        host = host_of()
        host.forward.wiring.checkpointing = checkpointing
        logits = host.logits(tiny.batch(4), list("aabb"), keys_of(host, "ab", "ab"))
        torch.stack(logits).square().sum().backward()
        gradients.append([p.grad.clone() for p in host.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for one, other in zip(*gradients, strict=True):
        tiny.assert_close(one, other, gradient=True)


def test_runs_side_by_side_are_as_they_are_alone():
    how: dict[str, Any] = {"epochs": 2, "val_size": 8}
    runs = [
        work.run(work.texts(24), "houlsby:size=8", seed=1, attention_dropout=True, **how),
        work.run(work.texts(24), "houlsby:size=8", seed=1, **how),
        work.run(work.texts(20, 3), "lora:rank=2", seed=2, attention_dropout=True, **how),
        work.run(work.texts(20, 3), "finetune:top=1", seed=3, attention_dropout=True, **how),
    ]
    together = inlay.train(work.host(), runs)
    for run, found in zip(runs, together, strict=True):
        (alone,) = inlay.train(work.host(), [run])
        assert found.losses == pytest.approx(alone.losses, abs=1e-4)
    assert together[0].losses != pytest.approx(together[1].losses, abs=1e-3)
    assert together[0].config["attention_dropout"] is True


def test_without_dropout_there_is_none_of_attention_either():
    how: dict[str, Any] = {"epochs": 1, "dropout": False}
    losses = [inlay.train(work.host(), work.run(attention_dropout=on, **how)).losses for on in (False, True)]
    assert losses[0] == losses[1]
    notes = prepare(work.run(attention_dropout=True, **how), work.host()).warnings
    assert "attention_dropout (--attention-dropout) does nothing: this run has no dropout (--no-dropout)" in notes
    assert not any("does nothing" in note for note in prepare(work.run(attention_dropout=True), work.host()).warnings)


def test_memory_for_all_probabilities_is_counted():
    host, jobs = (
        work.host(),
        [Job(0, "a", prepare(work.run(attention_dropout=on), work.host())) for on in (False, True)],
    )
    plain, more = (_bytes(host, job, 100) for job in jobs)
    assert more - plain == 16 * 4 * 2 * 100 * 100 * 3  # rows, heads, queries, keys, layers
