"""A mixed batch of LoRA adapters gives what peft gives for the same weights, row by row."""

from __future__ import annotations

import copy
import warnings

import pytest
import tiny
import torch
from torch import Tensor

import inlay

peft = pytest.importorskip("peft")

BATCH = tiny.batch(7, seed=1)
NAMES = ["small", "__base__", "wide", "outputs", "small", "one", "wide"]
ADAPTERS = {
    "small": (4, 8, ["attn.q", "attn.v"]),
    "wide": (11, 16, ["attn.q", "attn.v"]),
    "one": (1, 3, ["attn.q", "attn.v"]),
    "outputs": (5, 2, ["attn.q", "attn.v", "attn.out"]),
}
"""name: (rank, alpha, sites)"""
MODULES = {"attn.q": "query", "attn.v": "value", "attn.out": "attention.output.dense"}
PATHS = {"attn.q": "attention.self.query", "attn.v": "attention.self.value", "attn.out": "attention.output.dense"}


@pytest.fixture(scope="module")
def theirs():
    """A peft model with all adapters at random values."""
    configs = {
        name: peft.LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=[MODULES[site] for site in sites], init_lora_weights=False
        )
        for name, (rank, alpha, sites) in ADAPTERS.items()
    }
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = peft.get_peft_model(tiny.model("bert"), configs["small"], "small")
        for name in list(configs)[1:]:
            model.add_adapter(name, configs[name])
    return model.eval()


@pytest.fixture(scope="module")
def ours(theirs):
    """A host with the same base and the same adapters."""
    host = inlay.Host(tiny.model("bert"))
    state = {name: p.detach() for name, p in theirs.named_parameters()}
    for name, (rank, alpha, sites) in ADAPTERS.items():
        host.add(name, f"lora:rank={rank},alpha={alpha},sites={'+'.join(sites)}")
        slot = host.slot(name)
        tensors = host.forward.bank.read(slot)
        for layer in range(host.base.sites.layers):
            for site in sites:
                path = f"base_model.model.encoder.layer.{layer}.{PATHS[site]}"
                tensors[f"layers.{layer}.{site}.down"] = state[f"{path}.lora_A.{name}.weight"].T
                tensors[f"layers.{layer}.{site}.up"] = state[f"{path}.lora_B.{name}.weight"].T
        host.forward.bank.write(slot, tensors)
    return host


def run_theirs(model, names: list[str]) -> list[Tensor]:
    rows = tiny.rows_of(BATCH)
    ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    mask = (torch.arange(ids.shape[1]) < torch.from_numpy(BATCH.lengths).unsqueeze(1)).long()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask, adapter_names=names).last_hidden_state
    return [state[:length] for state, length in zip(states, BATCH.lengths, strict=True)]


def run_ours(host: inlay.Host, names: list[str], packed: bool = True) -> list[Tensor]:
    known = [None if name == "__base__" else name for name in names]
    with torch.no_grad():
        return host.hidden(BATCH, known, packed=packed).rows()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_a_mixed_batch_equals_pefts(theirs, ours, packed):
    rows = zip(run_ours(ours, NAMES, packed), run_theirs(theirs, NAMES), strict=True)
    for mine, other in rows:
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [*ADAPTERS, "__base__"])
def test_one_adapter_for_all_rows_equals_pefts(theirs, ours, name):
    names = [name] * len(NAMES)
    for mine, other in zip(run_ours(ours, names), run_theirs(theirs, names), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("i", "j"), [(0, 2), (0, 1), (3, 5)])
def test_two_swapped_names_are_noticed(theirs, ours, i, j):
    swapped = copy.copy(NAMES)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    pairs = zip(run_ours(ours, swapped), run_theirs(theirs, NAMES), strict=True)
    different = [row for row, (a, b) in enumerate(pairs) if not torch.allclose(a, b, atol=1e-3)]
    assert different == sorted((i, j))


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_that_takes_anothers_place_is_not_changed_by_it(ours, name):
    host = tiny.host("bert")
    for size in (8, 16):  # the sizes that smaller ranks are padded to
        for other in ("gone", "stays"):
            host.add(f"{other}{size}", f"lora:rank={size},sites=attn.q+attn.v")
            tiny.shake(host, f"{other}{size}")
        host.unload(f"gone{size}")
    host.load(ours.adapter(name), name)
    names = [name] * len(NAMES)
    for mine, other in zip(run_ours(host, names), run_ours(ours, names), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-6)
