"""Alpha of every token and layer, against a plain model with AdapterBias written into it by hooks."""

from __future__ import annotations

import pytest
import tiny
import torch

import inlay
from inlay.engine.alpha import alphas
from inlay.errors import InlayError, SlotError

PLAIN, GATED = "adapterbias", "adapterbias:l0=0.01"
SHARED = [f"adapterbias:share={what}" for what in ("v", "alpha", "both")]
SPECS = [PLAIN, *SHARED, "adapterbias:layers=1", GATED, "adapterbias:l0=0.01,low=-0.4,high=1.3"]
ARCHS = ["bert", "deberta-v2", "albert", "modernbert", "llama"]
"""Packed, padded, one layer called often, a gated feed-forward, norms before."""


def host_with(name: str, *specs: str) -> inlay.Host:
    """A shaken adapter for each spec, named by it."""
    host = tiny.host(name)
    for seed, spec in enumerate(specs):
        host.add(spec, spec, seed=seed)
        tiny.shake(host, spec, seed=seed)
    return host


def oracle(host: inlay.Host, name: str, arch: str, batch: inlay.Batch) -> list[torch.Tensor]:
    """[calls of a layer, tokens] of every row: the plain model with one adapter in it, row by row."""
    model, method, tensors = tiny.model(arch), inlay.parse_method(host.loaded(name).spec), host.read(name)
    heard: list[torch.Tensor] = []

    def row(site: str, tensor: str) -> torch.Tensor | None:
        return next((tensors[n] for n in (f"{site}.{tensor}", f"shared.{tensor}") if n in tensors), None)

    def shifted(site: str):
        def hook(module, args, out):
            w, b, v = (row(site, n) for n in ("w", "b", "v"))
            if (gate := row(site, "gate")) is not None:
                w = w * (torch.sigmoid(gate) * (method.high - method.low) + method.low).clamp(0, 1)
            alpha = args[0] @ w.to(args[0].dtype) + b.to(args[0].dtype)
            heard.append(alpha[0, :, 0].float().cpu())
            return out + alpha * v.to(out.dtype)

        return hook

    layers = host.base.sites.choose_layers(method.layers)
    for layer in range(host.base.sites.layers):
        out, norm = host.base.sites.at("ffn.out", layer), host.base.sites.at("ffn.norm", layer)
        module = model.get_submodule(out.path)
        if layer in layers:
            module.register_forward_hook(shifted(out.name))
        else:
            module.register_forward_hook(lambda m, args, out: heard.append(torch.zeros(out.shape[1])))
        if layer in layers and norm is not None:
            with torch.no_grad():
                own = model.get_submodule(norm.path)
                own.weight += tensors[f"{norm.name}.gamma"].to(own.weight.dtype)
                if norm.bias:
                    own.bias += tensors[f"{norm.name}.beta"].to(own.bias.dtype)
    found = []
    for ids in tiny.rows_of(batch):
        heard.clear()
        with torch.no_grad():
            model(input_ids=ids[None].to(tiny.DEVICE))
        found.append(torch.stack(heard))
    return found


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("spec", SPECS)
def test_equal_to_hooks(arch, spec):
    if arch == "albert" and "layers" in spec:
        pytest.skip("it has one layer")
    host, batch = host_with(arch, spec), tiny.batch(4)
    found = alphas(host, batch, [spec] * 4)
    expected = oracle(host, spec, arch, batch)
    for alpha, wanted, length in zip(found, expected, batch.lengths, strict=True):
        assert alpha is not None
        assert alpha.shape == (host.base.sites.depth, length)
        tiny.assert_close(alpha, wanted)
    assert torch.cat(expected, 1).std() > 0.05, "or the comparison says nothing"


def test_the_oracle_notices_a_wrong_adapter():
    host, batch = host_with("bert", PLAIN, SHARED[0]), tiny.batch(4)
    (alpha, *_), (other, *_) = alphas(host, batch, [PLAIN] * 4), oracle(host, SHARED[0], "bert", batch)
    assert alpha is not None
    assert (alpha - other).abs().max() > 0.05


@pytest.mark.parametrize("arch", ["bert", "deberta-v2"])
def test_all_in_one_batch_with_strangers_between(arch):
    host = host_with(arch, *SPECS)
    for name, method in (("bottleneck", "houlsby:size=4"), ("plain", "adapterbias:alpha=false"), ("own", "finetune")):
        host.add(name, method)
        tiny.shake(host, name)
    names = ["bottleneck", *SPECS, None, "plain", *reversed(SPECS), "own", "bottleneck"]
    batch = tiny.batch(len(names), seed=3)
    before = [row.clone() for row in host.hidden(batch, names).rows()]
    found = alphas(host, batch, names)
    for i, (name, alpha) in enumerate(zip(names, found, strict=True)):
        if name not in SPECS:
            assert alpha is None
            continue
        (wanted,) = oracle(host, name, arch, batch.take([i]))
        assert alpha is not None
        tiny.assert_close(alpha, wanted, name)
    for row, again in zip(before, host.hidden(batch, names).rows(), strict=True):
        assert torch.equal(row, again), "looking changes nothing"


def test_many_short_rows_take_the_batched_product():
    host = host_with("bert", PLAIN, *SHARED)
    names = [PLAIN, *SHARED] * 6
    batch = inlay.Batch.of([[5 + i, 6 + i, 7] for i in range(24)])
    for i, alpha in enumerate(alphas(host, batch, names)):
        (wanted,) = oracle(host, names[i], "bert", batch.take([i]))
        assert alpha is not None
        tiny.assert_close(alpha, wanted)


def test_a_finished_l0_adapter_gives_what_its_gates_gave():
    host, batch = host_with("bert", GATED), tiny.batch(3)
    before = alphas(host, batch, [GATED] * 3)
    host.load(host.adapter(GATED, finish=True), "finished")
    for was, now in zip(before, alphas(host, batch, ["finished"] * 3), strict=True):
        assert was is not None
        assert now is not None
        tiny.assert_close(now, was)


def test_no_gradients_and_nothing_for_nobody():
    host, batch = host_with("bert", PLAIN), tiny.batch(2)
    (alpha, none) = alphas(host, batch, [PLAIN, None])
    assert alpha is not None
    assert not alpha.requires_grad
    assert alpha.device.type == "cpu"
    assert none is None
    assert alphas(host, batch, [None, None]) == [None, None]


def test_mistakes():
    host, batch = host_with("bert", PLAIN), tiny.batch(2)
    with pytest.raises(SlotError, match="no adapter named 'x'"):
        alphas(host, batch, ["x", PLAIN])
    host.close()
    with pytest.raises(InlayError, match="closed"):
        alphas(host, batch, [PLAIN, PLAIN])
