"""A base in int8, or prepacked: close to fp32, rows that do not touch each other, what is refused, the way back."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor, nn
from training import work

import inlay
from inlay.base import int8
from inlay.base.int8 import Int8
from inlay.base.load import load
from inlay.errors import BaseError

pytestmark = pytest.mark.skipif(tiny.DEVICE.type != "cpu" or not tiny.EXACT, reason="int8 is for the CPU in fp32")
METHODS = ("houlsby:size=8", "lora", "adapterbias", "bitfit", "norms", "frozen")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written outside the test's own folder."""
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.model("bert").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def states(host: inlay.Host, names: list[str | None] | None = None) -> Tensor:
    batch = tiny.batch(6)
    with torch.no_grad():
        return host.hidden(batch, names or [None] * 6).states


def apart(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def held(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if not p.is_meta)


# --- the product --------------------------------------------------------------------------------------------


def oracle(x: Tensor, weight: Tensor, bias: Tensor | None, levels: int) -> Tensor:
    """The same in whole numbers and double precision, one number after the other."""
    w, v = weight.double(), x.double().reshape(-1, x.shape[-1])
    ws, vs = w.abs().amax(1) / 127, v.abs().amax(1) / levels
    whole = torch.floor(v / vs[:, None] + 0.5).long() @ torch.round(w / ws[:, None]).long().T
    y = whole.double() * vs[:, None] * ws + (0 if bias is None else bias.double())
    return y.view(*x.shape[:-1], -1).float()


@pytest.mark.parametrize("levels", [127, 63])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 16), (1, 7, 16), (2, 3, 16), (1, 16)])
def test_a_product_is_what_whole_numbers_say(monkeypatch, shape, bias, levels):
    monkeypatch.setattr(int8, "_levels", lambda: levels)
    random = torch.Generator().manual_seed(1)
    x, weight = torch.randn(shape, generator=random) * 3, torch.randn(24, 16, generator=random)
    b = torch.randn(24, generator=random) if bias else None
    y = Int8(weight, b)(x)
    assert apart(y, oracle(x, weight, b, levels)) < 1e-5
    assert 1e-4 < apart(y, nn.functional.linear(x, weight, b)) < 0.03  # and it is int8 indeed


def test_zeros_huge_and_tiny_tokens_do_not_touch_their_neighbours():
    random = torch.Generator().manual_seed(2)
    weight, x = torch.randn(8, 16, generator=random), torch.randn(4, 16, generator=random)
    weight[3] = 0
    x[0], x[1], x[2] = 0, x[1] * 1e20, x[2] * 1e-6
    y, expected = Int8(weight, None)(x), x @ weight.T
    assert torch.equal(y[0], torch.zeros(8))
    assert torch.equal(y[:, 3], torch.zeros(4))
    for row in (1, 2, 3):
        assert apart(y[row], expected[row]) < 0.03
    x[1] = float("nan")
    assert Int8(weight, None)(x)[1].isnan().all()
    assert torch.equal(Int8(weight, None)(x)[3], y[3])


# --- the base -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_every_architecture_is_close_to_fp32_and_restored_bit_for_bit(name):
    model = tiny.model(name)
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    host = inlay.Host(model)
    expected, fingerprint = states(host), host.base.fingerprint
    host.close()
    host = inlay.Host(model, weights="int8")
    assert (host.base.fingerprint, host.base.dtype) == (fingerprint, torch.float32)
    found = states(host)
    assert 1e-4 < apart(found, expected) < 0.06
    host.base.verify()
    host.close()
    assert not host.base.products
    assert not [m for m in model.modules() if "forward" in m.__dict__]
    assert all(torch.equal(kept[key], value) for key, value in model.state_dict().items())
    assert torch.equal(states(inlay.Host(model)), expected)


def test_without_a_pass_the_model_is_int8_as_well():
    model, ids = tiny.model("bert"), torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        plain = model(ids).last_hidden_state
        host = inlay.Host(model, weights="int8")
        through = host.hidden(inlay.Batch.of([[5, 6, 7]]), [None]).states
        assert apart(model(ids).last_hidden_state[0], through) < 1e-5
        assert apart(through, plain[0]) > 1e-4
        host.close()
        assert torch.equal(model(ids).last_hidden_state, plain)


def test_only_projections_of_layers_change_and_queries_keys_and_values_are_one():
    host = inlay.Host(tiny.model("bert"), weights="int8")
    assert len(host.base.products) == 3 * 6
    assert len({id(product) for product in host.base.products.values()}) == 3 * 4
    assert all(path.startswith("encoder.layer.") for path in host.base.products)
    padded = inlay.Host(tiny.model("deberta-v2"), weights="int8")
    assert len({id(product) for product in padded.base.products.values()}) == 3 * 6


def test_a_base_that_is_loaded_already_can_be_made_int8_by_its_host():
    base = load(tiny.model("bert"))
    host = inlay.Host(base, weights="int8")
    assert base.products
    expected = states(host)
    host.close()
    assert not base.products
    assert torch.equal(states(inlay.Host(load(tiny.model("bert"), weights="int8"))), expected)


def test_loaded_by_name_it_releases_the_weights_and_stays_int8(folder):
    plain, small = inlay.Host(folder, device="cpu"), inlay.Host(folder, weights="int8")
    assert small.base.fingerprint == plain.base.fingerprint
    assert 1e-4 < apart(states(small), states(plain)) < 0.06
    layers = sum(m.weight.nbytes for m in plain.base.model.encoder.modules() if isinstance(m, nn.Linear))
    assert held(plain.base.model) - held(small.base.model) == layers
    assert plain.base.model.state_dict().keys() == small.base.model.state_dict().keys()
    with pytest.raises(BaseError, match="released its weights; load it without int8"):
        small.base.verify()
    small.close()
    with torch.no_grad():
        ids = torch.tensor([[5, 6, 7]])
        closed, exact = (host.base.model(ids).last_hidden_state for host in (small, plain))
    assert small.base.form == "int8"
    assert 1e-4 < apart(closed, exact) < 0.06


# --- adapters -----------------------------------------------------------------------------------------------


def test_adapters_load_and_route_as_in_fp32(folder):
    plain, small = inlay.Host(folder, device="cpu"), inlay.Host(folder, weights="int8")
    for i, method in enumerate(METHODS):
        plain.add(method, method, labels=3)
        tiny.shake(plain, method, seed=i)
        small.load(plain.adapter(method), method)
        assert all(torch.equal(small.read(method)[key], value) for key, value in plain.read(method).items())
    batch, names = tiny.batch(6), list(METHODS)
    with torch.no_grad():
        exact, mixed = torch.stack(plain.logits(batch, names)), torch.stack(small.logits(batch, names))
        wrong = torch.stack(small.logits(batch, names[::-1]))
        for i, name in enumerate(names):
            alone = small.logits(batch.take([i]), [name])[0]
            assert apart(mixed[i], alone) < 1e-4, name
            assert apart(mixed[i], exact[i]) < 0.1, name
    assert apart(wrong, exact) > 0.2  # a wrong route would show


def test_bare_rows_do_not_depend_on_the_rows_beside_them():
    host, batch = inlay.Host(tiny.model("bert"), weights="int8"), tiny.batch(6)
    with torch.no_grad():
        together = host.hidden(batch, [None] * 6).rows()
        for i, row in enumerate(together):
            assert apart(host.hidden(batch.take([i]), [None]).states, row) < 1e-5


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["finetune", "finetune:top=1", "diffprune"])
def test_adapters_of_weights_are_refused(method):
    host = inlay.Host(tiny.model("bert"), weights="int8")
    with pytest.raises(BaseError, match="works with the base's own weights; load it on a host without int8"):
        host.add("x", method, labels=2)
    assert host.names == []
    host.add("x", "lora", labels=2)


def test_training_is_refused():
    host = tiny.text_host("bert")
    small = inlay.Host(load(tiny.model("bert", vocab_size=len(host.base.tokenizer))), weights="int8")
    small.base.tokenizer = host.base.tokenizer
    with pytest.raises(BaseError, match="for serving; train on a host without int8"):
        inlay.train(small, inlay.Run(data=work.texts(20), method="lora", max_steps=2))
    small.add("x", "lora", labels=2)
    with pytest.raises(BaseError, match="train on a host without int8"):
        small.keys({"x": (0, 0)})


def test_a_gradient_is_refused_where_it_is_asked_for():
    host = inlay.Host(tiny.model("bert"), weights="int8")
    host.add("x", "lora", labels=2)
    logits = host.logits(tiny.batch(2), ["x", "x"])
    with torch.no_grad():
        assert torch.equal(torch.stack(logits), torch.stack(host.logits(tiny.batch(2), ["x", "x"])))
    with pytest.raises(BaseError, match="has no gradients"):
        torch.stack(logits).sum().backward()


def test_another_dtype_or_device_is_refused_and_leaves_the_model_alone():
    model = tiny.model("bert").bfloat16()
    before = model.config._attn_implementation
    with pytest.raises(BaseError, match=r"int8 is for the CPU in float32.*cpu in bfloat16"):
        inlay.Host(model, weights="int8")
    assert model.config._attn_implementation == before
    assert all(p.requires_grad for p in model.parameters())
    base = load(tiny.model("bert"))
    base.model.to("meta")
    with pytest.raises(BaseError, match=r"int8 is for the CPU in float32.*meta in float32"):
        inlay.Host(base, weights="int8")


def test_a_torch_without_int8_products_is_refused(monkeypatch):
    def missing(self: Int8, x: Tensor) -> Tensor:
        raise RuntimeError("Didn't find engine for this\nand more")

    monkeypatch.setattr(Int8, "compute", missing)
    model = tiny.model("bert")
    with pytest.raises(BaseError, match=r"cannot do int8 on the CPU .Didn't find engine for this.; load without it"):
        inlay.Host(model, weights="int8")
    monkeypatch.undo()
    inlay.Host(model, weights="int8")  # nothing was left behind


def test_without_vnni_tokens_have_fewer_levels(monkeypatch):
    for there, expected in (
        ({"architecture": "x86_64", "avx2": True}, 63),
        ({"architecture": "x86_64", "avx_vnni": True}, 127),
        ({"architecture": "aarch64"}, 127),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: there)
        int8._levels.cache_clear()
        assert int8._levels() == expected
    monkeypatch.undo()
    int8._levels.cache_clear()


# --- prepacked: the same road in fp32 -----------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_prepacked_is_equal_to_plain_and_restored_bit_for_bit(name):
    model = tiny.model(name)
    host = inlay.Host(model)
    expected = states(host)
    host.close()
    host = inlay.Host(model, weights="prepack")
    assert host.base.form == "prepack"
    tiny.assert_close(states(host), expected)
    host.close()
    assert torch.equal(states(inlay.Host(model)), expected)


def test_prepacked_refuses_what_int8_refuses(folder):
    host = inlay.Host(folder, weights="prepack")
    with pytest.raises(BaseError, match="load it on a host without prepack"):
        host.add("x", "finetune", labels=2)
    host.add("x", "lora", labels=2)
    with pytest.raises(BaseError, match="train on a host without prepack"):
        host.keys({"x": (0, 0)})
    with pytest.raises(BaseError, match="train on a host without prepack"):
        torch.stack(host.logits(tiny.batch(2), ["x", "x"])).sum().backward()
    plain = inlay.Host(folder, device="cpu")
    tiny.assert_close(states(host, ["x"] * 6), states(plain))
    assert held(host.base.model) < held(plain.base.model)


def test_one_form_at_a_time_and_only_those_there_are():
    with pytest.raises(BaseError, match=r"unknown form of weights 'int4'\. Did you mean int8"):
        inlay.Host(tiny.model("bert"), weights="int4")
    with pytest.raises(BaseError, match="runs in int8 already"):
        inlay.Host(load(tiny.model("bert"), weights="int8"), weights="prepack")
