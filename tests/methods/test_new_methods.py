"""Three methods from outside, one file each, are what peft computes, and keep every contract."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tiny
import torch
from contract import test_contract as contract
from contract.cases import host_of
from outside.dora import Decomposed, Dora
from outside.ia3 import IA3
from outside.vera import Vera
from torch import Tensor

import inlay
from inlay.bank.delta import parse
from inlay.bank.wiring import Wiring
from inlay.base.arch import find
from inlay.base.leaf import Leaf
from inlay.base.sites import resolve
from inlay.errors import BaseError, SlotError
from inlay.interop.check import padded
from inlay.interop.graph import Graph
from inlay.interop.merge import merge, merged_weights
from inlay.registry import methods

peft = pytest.importorskip("peft")

OUTSIDE = {"ia3": IA3, "vera": Vera, "dora": Dora}
SPECS = {"ia3": "ia3", "vera": "vera:rank=5", "dora": "dora:rank=3,alpha=5"}
QUERIES_AND_VALUES = ["query", "value"]
SCALED = r".*layer\.\d+\.output\.dense"
CONFIGS = {
    "ia3": lambda: peft.IA3Config(target_modules=rf".*(key|value)|{SCALED}", feedforward_modules=SCALED),
    "vera": lambda: peft.VeraConfig(r=5, target_modules=QUERIES_AND_VALUES),
    "dora": lambda: peft.LoraConfig(r=3, lora_alpha=5, use_dora=True, target_modules=QUERIES_AND_VALUES),
}
PATHS = {
    "attn.q": "attention.self.query",
    "attn.k": "attention.self.key",
    "attn.v": "attention.self.value",
    "ffn.out": "output.dense",
}
TENSORS = {
    "ia3": {"scale": "ia3_l.default"},
    "vera": {"d": "vera_lambda_d.default", "b": "vera_lambda_b.default"},
    "dora": {
        "down": "lora_A.default.weight",
        "up": "lora_B.default.weight",
        "m": "lora_magnitude_vector.default.weight",
    },
}
ROWS = tiny.batch(5, seed=1)
MINE = "mine"
every_method = pytest.mark.parametrize("name", OUTSIDE)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name, method in OUTSIDE.items():
        methods.register(name)(method)
    yield
    for name in OUTSIDE:
        methods._classes.pop(name)


def theirs_of(name: str) -> Any:
    """A peft model with random values."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = peft.get_peft_model(tiny.model("bert"), CONFIGS[name]())
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def counterpart(name: str, full: str) -> str:
    """The name in peft of one of our tensors: `layers.0.attn.q.down`."""
    _, layer, kind = full.rpartition(".")[0].split(".", 2)
    path = f"base_model.model.encoder.layer.{layer}.{PATHS[kind]}"
    return f"{path}.{TENSORS[name][full.rpartition('.')[2]]}"


def ours_of(name: str, theirs: Any) -> inlay.Host:
    """A host with others, and an adapter that has peft's values."""
    host = host_of("bert", ["lora:rank=3", "bitfit", "houlsby:size=4", SPECS[name]])
    host.add(MINE, SPECS[name])
    tensors, state = host.forward.bank.read(host.slot(MINE)), dict(theirs.named_parameters())
    if name == "vera":  # the random matrices are ours
        theirs.base_model.vera_A["default"].copy_(tensors["16x16.A"].T)
        theirs.base_model.vera_B["default"].copy_(tensors["16x16.B"].T)
    for full in [n for n in tensors if n.rpartition(".")[2] in TENSORS[name]]:
        value = state[counterpart(name, full)].detach().squeeze()
        if full.endswith(".scale"):
            value = value - 1
        if full.endswith(".m"):
            value = value - host.forward.wiring.leaves[full.removesuffix(".m")].weight.norm(dim=0)
        tensors[full] = (value.T if value.dim() == 2 else value).reshape(tensors[full].shape)
    host.forward.bank.write(host.slot(MINE), tensors)
    return host


def states_of(model: Any) -> list[Tensor]:
    rows = (padded(ROWS.take([i])) for i in range(len(ROWS.lengths)))
    return [model(**row).last_hidden_state[0] for row in rows]


@every_method
def test_a_mixed_batch_equals_pefts(name):
    theirs = theirs_of(name)
    host = ours_of(name, theirs)
    names = [MINE, "bitfit", MINE, "lora:rank=3", MINE]
    with torch.no_grad():
        found, expected = host.hidden(ROWS, names).rows(), states_of(theirs)
        bare = host.hidden(ROWS, [None] * 5).rows()
    for row in (0, 2, 4):
        torch.testing.assert_close(found[row], expected[row], atol=1e-5, rtol=1e-5)
        assert (found[row] - bare[row]).abs().max() > 1e-2
    alone = host.hidden(ROWS, ["bitfit"] * 5).rows()
    torch.testing.assert_close(found[1], alone[1])


@every_method
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_and_a_step_are_pefts(name, checkpointing):
    theirs = theirs_of(name)
    host = ours_of(name, theirs)
    host.forward.wiring.checkpointing = checkpointing
    torch.cat(states_of(theirs)).square().sum().backward()
    host.hidden(ROWS, [MINE] * 5).states.square().sum().backward()
    state = dict(theirs.named_parameters())
    found = host.forward.bank.gradients(host.slot(MINE))
    assert found
    for full, gradient in found.items():
        expected = state[counterpart(name, full)].grad.squeeze()
        expected = expected.T if expected.dim() == 2 else expected
        torch.testing.assert_close(gradient, expected.reshape(gradient.shape), atol=1e-3, rtol=1e-4)
    step = torch.optim.SGD([*host.parameters()], 1e-4), torch.optim.SGD(theirs.parameters(), 1e-4)
    for optimiser in step:
        optimiser.step()
    with torch.no_grad():
        pairs = zip(host.hidden(ROWS, [MINE] * 5).rows(), states_of(theirs), strict=True)
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["ia3", "dora"])
def test_merged_it_is_what_peft_merges(name, tmp_path):
    theirs = theirs_of(name)
    host = ours_of(name, theirs)
    assert merge(host, MINE, tmp_path / "out", without_head=True, tokenizer=False).difference < 1e-5
    expected = theirs.merge_and_unload().state_dict()
    for key, weight in merged_weights(host, MINE).items():
        torch.testing.assert_close(weight, expected[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arch", ["bert", "gpt2", "albert", "llama"])
@every_method
def test_they_keep_the_contract(name, arch):
    contract.test_identity_at_start(arch, SPECS[name])
    contract.test_training_moves_this_adapter_and_nothing_else(arch, SPECS[name])
    contract.test_a_mixed_batch_equals_each_alone(arch, ["lora:rank=3", SPECS[name], "houlsby:size=4"], None)


def test_what_adapters_share_is_there_once_and_in_no_file():
    host = tiny.host()
    host.add("a", "vera:rank=5", seed=1)
    host.add("b", "vera:rank=5,d=0.5", seed=2)
    host.add("c", "vera:rank=5,key=7")
    bank = host.forward.bank
    assert bank.place(host.slot("a"), "16x16.A").stack is bank.place(host.slot("b"), "16x16.A").stack
    assert bank.place(host.slot("a"), "16x16.A").stack.shape[0] == 1
    assert not torch.equal(bank.read(host.slot("a"))["16x16.A"], bank.read(host.slot("c"))["16x16.A"])
    assert {n.rpartition(".")[2] for n in host.adapter("a").tensors} == {"d", "b"}
    assert parse("vera:rank=5").count(host.base.sites) == 6 * (5 + 16)
    tiny.shake(host, "a")
    host.load(host.adapter("a"), "again")
    names = ["a", "again", "b", "a", "b"]
    rows = host.hidden(tiny.batch(1).take([0] * 5), names).rows()
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2])
    with pytest.raises(SlotError, match="shared with other adapters"):
        host.write("a", {"16x16.A": torch.ones(16, 5)})


@pytest.mark.parametrize("arch", ["bert", "albert"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_derived_is_derived_once_in_a_pass(arch, checkpointing, monkeypatch):
    host, asked = tiny.host(arch), []
    plain = Decomposed.derived

    def derived(self: Decomposed, p: Any, base: Leaf) -> Any:
        asked.append(base.site.name)
        return plain(self, p, base)

    monkeypatch.setattr(Decomposed, "derived", derived)
    host.add("a", SPECS["dora"])
    host.add("b", SPECS["dora"])
    host.forward.wiring.checkpointing = checkpointing
    host.hidden(ROWS, ["a", "b", None, "a", "b"]).states.sum().backward()
    sites = [part.site.name for part in host.forward.bank.slot(host.slot("a")).parts]
    assert sorted(asked) == sorted(sites)


@every_method
def test_attached_it_is_the_hosts(name):
    host = host_of("bert", [SPECS[name]])
    model = tiny.model("bert")
    attached = inlay.attach(model, SPECS[name])
    with torch.no_grad():
        for full, tensor in attached.tensors.items():
            tensor.copy_(host.read(SPECS[name])[full])
        found, expected = states_of(model.eval()), host.hidden(ROWS, [SPECS[name]] * 5).rows()
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
    assert attached.adapter().tensors.keys() == host.adapter(SPECS[name]).tensors.keys()


@every_method
def test_a_graph_has_it_too(name):
    host = tiny.host()
    for one in ("a", "b"):
        host.add(one, SPECS[name], labels=2, pool="mean", seed=len(one))
        tiny.shake(host, one, seed=ord(one))
    row, names = padded(ROWS.take([0])), ["a", "b"]
    graph = Graph(host, names)
    with torch.no_grad():
        ids, mask = (row[key].expand(2, -1) for key in ("input_ids", "attention_mask"))
        found = graph(ids, mask, torch.tensor([0, 1]))[0]
        expected = host.logits(ROWS.take([0, 0]), names)
    torch.testing.assert_close(found, torch.stack(list(expected)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("arch", tiny.CONFIGS)
def test_a_leaf_is_the_bases_own_projection(arch, fuse):
    model = tiny.model(arch)
    sites = resolve(model, find(arch))
    leaves = Wiring(model, sites, fuse=fuse).leaves
    for site in sites:
        leaf = leaves[site.name]
        if site.norm is not None:
            assert leaf.weight.shape == (site.d_out,)
            continue
        x = torch.randn(3, site.d_in)
        y = leaf.plain(x) if site.columns is None else leaf.plain(x)[:, slice(*site.columns)]
        found = leaf.product(x) + (0 if leaf.bias is None else leaf.bias)
        assert leaf.weight.shape == (site.d_in, site.d_out)
        torch.testing.assert_close(found, y, atol=1e-5, rtol=1e-5)


def test_without_plain_weights_products_go_on_and_weights_are_refused():
    plain, host = tiny.host(), inlay.Host(tiny.model("bert"), weights="prepack")
    for one in (plain, host):
        one.add("ia3", "ia3")
        tiny.shake(one, "ia3")
    with torch.no_grad():
        rows = [one.hidden(ROWS, ["ia3"] * 5).states for one in (plain, host)]
    torch.testing.assert_close(*rows, atol=1e-5, rtol=1e-5)
    with pytest.raises(BaseError, match=r"'dora' \(dora\) works with the base's own weights; .*without prepack"):
        host.add("dora", "dora")
    with pytest.raises(BaseError, match=r"layers\.0\.attn\.q is kept as prepack; load the base without prepack"):
        _ = host.forward.wiring.leaves["layers.0.attn.q"].weight
