"""Every method on every architecture. A new method or row is picked up by itself."""

from __future__ import annotations

import pytest
import tiny
import torch

import inlay
from contract.cases import ARCHS, HOSTS, PAIRS, REFUSED, host_of
from inlay.bank.delta import WeightMethod
from inlay.base.fingerprint import fingerprints
from inlay.errors import SpecError

both = pytest.mark.parametrize(("name", "spec"), PAIRS)
every_arch = pytest.mark.parametrize("name", ARCHS)
side_by_side = pytest.mark.parametrize(("name", "specs"), HOSTS)


def test_every_architecture_has_a_tiny_model():
    assert set(ARCHS) == set(tiny.CONFIGS)


@pytest.mark.parametrize(("name", "spec"), sorted(REFUSED))
def test_refused(name, spec):
    with pytest.raises(SpecError, match=REFUSED[name, spec]):
        tiny.host(name).add("a", spec)


@every_arch
def test_the_base_is_untouched_by_wiring(name):
    model, batch = tiny.model(name), tiny.batch(4)
    rows = tiny.host(name).hidden(batch, [None] * 4).rows()
    for ids, row in zip(tiny.rows_of(batch), rows, strict=True):
        with torch.no_grad():
            alone = model(input_ids=ids[None].to(tiny.DEVICE)).last_hidden_state[0]
        tiny.assert_close(row, alone)


@both
def test_identity_at_start(name, spec):
    host, batch = tiny.host(name), tiny.batch(5)
    host.add("a", spec)
    base, fresh = host.hidden(batch, [None] * 5), host.hidden(batch, ["a"] * 5)
    if inlay.parse_method(spec).identity_at_start:
        # its three projections are three products on CUDA, and trained biases of scores need another attention
        other = tiny.DEVICE.type == "cuda" or host.base.sites.arch.position_bias is not None
        if other and isinstance(inlay.parse_method(spec), WeightMethod):
            tiny.assert_close(fresh.states, base.states)
        else:
            assert torch.equal(base.states, fresh.states)
        return
    host.add("z", spec + ("," if ":" in spec else ":") + "init=0")
    assert torch.equal(base.states, host.hidden(batch, ["z"] * 5).states)
    moved = (fresh.states - base.states).abs().max()
    assert moved < (0.05 if tiny.EXACT else 0.1)
    assert moved > 0 or not tiny.EXACT  # in half precision a fresh adapter may round away


@both
def test_training_moves_this_adapter_and_nothing_else(name, spec):
    host, batch = tiny.host(name), tiny.batch(4)
    for adapter in ("other", "mine"):
        host.add(adapter, spec, labels=3, seed=7)
        tiny.shake(host, adapter)
    before = {adapter: host.adapter(adapter).tensors for adapter in ("other", "mine")}
    weights = {n: p.clone() for n, p in host.base.model.named_parameters()}
    optimiser = torch.optim.AdamW(host.parameters(), lr=0.01, weight_decay=0)
    for step in range(3):
        optimiser.zero_grad()
        logits = host.logits(batch, ["mine"] * 4, keys=host.keys({"mine": (0, step)}))
        torch.stack(logits).square().sum().backward()
        optimiser.step()
    after = {adapter: host.adapter(adapter).tensors for adapter in before}
    assert all(torch.equal(before["other"][n], t) for n, t in after["other"].items())
    assert any(not torch.equal(before["mine"][n], t) for n, t in after["mine"].items())
    assert all(torch.equal(weights[n], p) and not p.requires_grad for n, p in host.base.model.named_parameters())
    host.base.verify()


@side_by_side
@pytest.mark.parametrize("packed", [None, False])
def test_a_mixed_batch_equals_each_alone(name, specs, packed):
    host = host_of(name, specs)
    names = [*specs, None] * 2
    batch = tiny.batch(len(names))
    with torch.no_grad():
        mixed = host.hidden(batch, names, packed=packed).rows()
        for i, adapter in enumerate(names):
            alone = host.hidden(batch.take([i]), [adapter], packed=packed).rows()[0]
            tiny.assert_close(mixed[i], alone)
        wrong = host.hidden(batch, names[1:] + names[:1], packed=packed).rows()
    noticed = [(m - w).abs().max() > (1e-3 if tiny.EXACT else 0.06) for m, w in zip(mixed, wrong, strict=True)]
    assert all(noticed), "a wrong route must be noticed"


@side_by_side
def test_packed_equals_padded(name, specs):
    host = host_of(name, specs)
    if not host.base.sites.arch.packable:
        with pytest.raises(inlay.InlayError, match="cannot run packed"):
            host.hidden(tiny.batch(2), [None] * 2, packed=True)
        return
    names = [*specs, None]
    batch = tiny.batch(len(names), longest=30)
    keys = host.keys({spec: (i, 3) for i, spec in enumerate(specs)})
    for noise in (None, keys):
        packed, padded = (host.hidden(batch, names, noise, packed=p).states for p in (True, False))
        tiny.assert_close(packed, padded)


@side_by_side
def test_gradients_side_by_side_equal_gradients_alone(name, specs):
    batch = tiny.batch(2 * len(specs))
    target = torch.randn(len(batch.ids), 16, generator=torch.Generator().manual_seed(1)).to(tiny.DEVICE)
    targets = torch.split(target, batch.lengths.tolist())
    together, alone = host_of(name, specs), host_of(name, specs)
    keys = {spec: (i, 5) for i, spec in enumerate(specs)}
    rows = together.hidden(batch, specs * 2, together.keys(keys)).rows()
    torch.stack([(r * t).sum() for r, t in zip(rows, targets, strict=True)]).sum().backward()
    for i, spec in enumerate(specs):
        mine = [i, i + len(specs)]
        rows = alone.hidden(batch.take(mine), [spec] * 2, alone.keys({spec: keys[spec]})).rows()
        torch.stack([(r * targets[m]).sum() for r, m in zip(rows, mine, strict=True)]).sum().backward()
    for spec in specs:
        ours, theirs = together.gradients(spec), alone.gradients(spec)
        for tensor, expected in theirs.items():
            if expected is None:
                assert ours[tensor] is None, f"{spec} {tensor}"
            else:
                tiny.assert_close(ours[tensor], expected, f"{spec} {tensor}", gradient=True)


@both
def test_save_and_load_are_bit_exact(name, spec, tmp_path):
    host, batch = tiny.host(name), tiny.batch(4)
    host.add("a", spec, labels=["no", "yes"], head="tanh2", seed=3)
    tiny.shake(host, "a")
    saved = host.adapter("a")
    saved.save(tmp_path / "a.safetensors")
    other = tiny.host(name)
    other.add("neighbour", spec)
    other.load(inlay.Adapter.read(tmp_path / "a.safetensors"), "b")
    with torch.no_grad():
        before, after = (h.logits(batch, [n] * 4) for h, n in ((host, "a"), (other, "b")))
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    again = other.adapter("b")
    assert (again.method, again.labels, again.head, again.seed) == (saved.method, ("no", "yes"), "tanh2", 3)
    assert again.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(again.tensors[n], t) for n, t in saved.tensors.items())


@both
def test_attach_equals_the_host_and_detach_restores(name, spec):
    model, batch = tiny.model(name), tiny.batch(1)
    ids = tiny.ids_of(batch)[None].to(tiny.DEVICE)
    before, print_before, keys_before = (
        model(input_ids=ids).last_hidden_state,
        fingerprints(model),
        set(model.state_dict()),
    )
    attached = inlay.attach(model, spec)
    with torch.no_grad():
        for p in attached.tensors.values():
            if isinstance(p, torch.nn.Parameter):
                p += 0.1
    host = tiny.host(name)
    host.load(attached.adapter(), "a")
    adapted = model(input_ids=ids).last_hidden_state
    found = host.hidden(batch, ["a"]).states[: len(batch.ids)]  # on CUDA there is padding after them
    tiny.assert_close(adapted[0], found)
    assert (adapted - before).abs().max() > 1e-3
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(n.startswith("inlay_adapter.") for n in trained)
    assert keys_before <= set(model.state_dict())
    attached.detach()
    assert torch.equal(model(input_ids=ids).last_hidden_state, before)
    assert fingerprints(model) == print_before
    assert all(p.requires_grad for p in model.parameters())


@both
def test_gradient_checkpointing_agrees(name, spec):
    batch = tiny.batch(4)
    found = []
    for checkpointing in (False, True):
        host = tiny.host(name)
        host.add("a", spec)
        tiny.shake(host, "a")
        host.forward.wiring.checkpointing = checkpointing
        states = host.hidden(batch, ["a", "a", None, "a"], host.keys({"a": (1, 2)})).states
        host.hidden(tiny.batch(2, seed=9), ["a", None], host.keys({"a": (4, 4)}))  # another pass in between
        states.square().sum().backward()
        found.append((states, host.gradients("a")))
    assert torch.equal(found[0][0], found[1][0])
    for tensor, expected in found[0][1].items():
        if expected is not None:
            tiny.assert_close(found[1][1][tensor], expected, tensor, gradient=True)


@both
def test_every_parameter_receives_a_gradient(name, spec):
    host, batch = tiny.host(name), tiny.batch(6)
    pool = "pooler" if host.base.sites.at("pooler") else "mean"
    host.add("a", spec, labels=3, pool=pool, head="mlp")
    tiny.shake(host, "a")
    logits = torch.stack(host.logits(batch, ["a"] * 6)).square().sum()
    hidden = host.hidden(batch, ["a"] * 6).states
    weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden.device)
    (logits + (hidden * weight).sum()).backward()
    keys = ("attn.k.bias", "key.bias", "k_lin.bias", "key_proj.bias", "k_proj.bias")
    dead = [n for n, g in host.gradients("a").items() if g is None or not g.abs().max() > 1e-7]
    assert [n for n in dead if not n.removesuffix(".gate").removesuffix(".group").endswith(keys)] == []


@every_arch
def test_closing_the_host_restores_the_model(name):
    model, batch = tiny.model(name), tiny.batch(1)
    before = model(input_ids=tiny.ids_of(batch)[None].to(tiny.DEVICE)).last_hidden_state
    host = inlay.Host(model)
    host.add("a", "houlsby")
    host.close()
    assert torch.equal(model(input_ids=tiny.ids_of(batch)[None].to(tiny.DEVICE)).last_hidden_state, before)
    assert all(p.requires_grad for p in model.parameters())
