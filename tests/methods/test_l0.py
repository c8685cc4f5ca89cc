"""What gates do: AdapterBias with L0, and diff pruning. Penalty, noise, and what is left when training is over."""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from torch import Tensor

import inlay

BATCH = inlay.Batch.of([[5, 6, 7, 8, 9], [10, 11, 12]])
QUIET = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.0}
"""Two layers and no dropout: the only noise is the gates'."""
GATE = "low=-0.4,high=1.3,temperature=0.7"
LOW, HIGH, TEMPERATURE = -0.4, 1.3, 0.7


def stretch(s: Tensor, low: float, high: float) -> Tensor:
    return (s * (high - low) + low).clip(0, 1)


def settled(log_a: Tensor, low: float = -1.5, high: float = 1.5) -> Tensor:
    return stretch(1 / (1 + (-log_a).exp()), low, high)


def sampled(log_a: Tensor, u: Tensor) -> Tensor:
    return stretch(torch.sigmoid((torch.log(u / (1 - u)) + log_a) / TEMPERATURE), LOW, HIGH)


def randomised(spec: str, name: str = "a", host: inlay.Host | None = None, seed: int = 0) -> inlay.Host:
    """A host with an adapter at random values, its gates spread around zero."""
    host = host or tiny.host("bert", **QUIET)
    host.add(name, spec)
    random = torch.Generator().manual_seed(seed)
    bank, slot = host.forward.bank, host.slot(name)
    tensors = {n: torch.randn(t.shape, generator=random) for n, t in bank.read(slot).items()}
    bank.write(slot, bank.read(slot) | {n: t for n, t in tensors.items() if not n.endswith("strength")})
    if (weights := bank.slot(slot).weights) is not None:
        with torch.no_grad():
            for n, t in weights.tensors.items():
                t.copy_(torch.randn(t.shape, generator=random) * (1.0 if n.endswith(".gate") else 0.1))
    return host


def gates(host: inlay.Host, name: str = "a") -> dict[str, Tensor]:
    return {n: t for n, t in host.adapter(name).tensors.items() if n.endswith(".gate")}


def run(host: inlay.Host, name: str, key: tuple[int, int] | None = None) -> Tensor:
    """Hidden states; trained with this (seed, step) if given."""
    return host.hidden(BATCH, [name, name], None if key is None else host.keys({name: key})).states


# --- AdapterBias --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["none", "v", "alpha", "both"])
def test_penalty_is_lambda_times_the_expected_number_of_open_gates(share):
    host = randomised(f"adapterbias:l0=0.03,share={share},{GATE}")
    randomised(f"adapterbias:l0=0.5,share={share},{GATE}", "b", host, seed=1)  # in the same group
    host.add("ungated", "adapterbias")
    assert host.penalty("ungated") is None
    for name, strength in (("a", 0.03), ("b", 0.5)):
        log_a = torch.cat(list(gates(host, name).values()))
        is_open = torch.sigmoid(log_a - TEMPERATURE * math.log(-LOW / HIGH))
        assert len(log_a) == 24 * (1 if share in ("alpha", "both") else 2)  # shared gates count once
        torch.testing.assert_close(host.penalty(name), strength * is_open.sum())


@pytest.mark.parametrize("share", ["none", "alpha"])
def test_an_attached_adapter_has_the_same_penalty(share):
    spec = f"adapterbias:l0=0.03,share={share},{GATE}"
    attached, host = inlay.attach(tiny.model("bert", **QUIET), spec), tiny.host("bert", **QUIET)
    host.add("a", spec)
    torch.testing.assert_close(attached.penalty(), host.penalty("a"))
    attached.penalty().backward()
    assert all(attached.tensors[name].grad.min() > 0 for name in gates(host))


def test_noise_follows_the_key_and_the_formula():
    host = randomised(f"adapterbias:l0=0.01,{GATE}")
    first = run(host, "a", (1, 0))
    assert torch.equal(first, run(host, "a", (1, 0)))
    assert not torch.allclose(first, run(host, "a", (1, 1)), atol=1e-3)
    assert not torch.allclose(first, run(host, "a", (2, 0)), atol=1e-3)
    assert not torch.allclose(first, run(host, "a"), atol=1e-3)

    keys, slot = host.keys({"a": (1, 0)}), host.slot("a")
    tensors = host.adapter("a").tensors
    for name, log_a in gates(host).items():
        u = keys.uniform(slot, f"gate {name}", tuple(log_a.shape), log_a.device)
        tensors[name.removesuffix("gate") + "w"] *= sampled(log_a, u)
    host.add("oracle", "adapterbias")
    host.write("oracle", {name: tensor for name, tensor in tensors.items() if not name.endswith(".gate")})
    torch.testing.assert_close(first, run(host, "oracle"), atol=1e-5, rtol=1e-5)


def test_a_neighbour_that_is_evaluated_has_settled_gates():
    host = randomised(f"adapterbias:l0=0.01,{GATE}")
    randomised(f"adapterbias:l0=0.01,{GATE}", "b", host, seed=1)
    rows = host.hidden(BATCH, ["a", "b"], host.keys({"a": (1, 0)})).rows()
    still = host.hidden(BATCH, ["a", "b"]).rows()
    assert torch.equal(rows[1], still[1])
    assert not torch.allclose(rows[0], still[0], atol=1e-3)


@pytest.mark.parametrize("share", ["none", "alpha", "both"])
def test_finishing_prunes_for_real_and_serves_the_same(share, tmp_path):
    host = randomised(f"adapterbias:l0=0.01,share={share},low=-1.5,high=1.5")
    before = host.adapter("a")
    finished = host.adapter("a", finish=True)
    kept = finished.tensors
    assert not any(n.endswith((".gate", ".strength", ".w")) for n in kept)
    for name, log_a in gates(host).items():
        w = name.removesuffix("gate") + "w"
        dense = (before.tensors[w] * settled(log_a)).flatten()
        assert kept[f"{w}#index"].dtype == torch.int32
        assert kept[f"{w}#index"].tolist() == dense.nonzero().flatten().tolist()
        torch.testing.assert_close(kept[f"{w}#value"], dense[dense != 0])
        assert 0 < len(kept[f"{w}#value"]) < len(dense)

    served = tiny.host("bert", **QUIET)
    served.load(inlay.Adapter.read(finished.save(tmp_path / "a.safetensors")), "a")
    torch.testing.assert_close(run(served, "a"), run(host, "a"), atol=1e-6, rtol=1e-6)
    # no noise and no penalty once the gates are gone
    assert torch.equal(run(served, "a", (1, 0)), run(served, "a"))
    assert served.penalty("a") is None


@pytest.mark.parametrize("closed", [0, 5, 12, 23, 24])
def test_stored_values_fall_as_gates_close(closed):
    host = randomised("adapterbias:l0=0.01")
    tensors = host.forward.bank.read(host.slot("a"))
    for name in gates(host):
        tensors[name] = torch.full((24, 1), 5.0)
        tensors[name][:closed] = -5.0
    host.forward.bank.write(host.slot("a"), tensors)
    finished = host.adapter("a", finish=True)
    stored = {n: t.numel() for n, t in finished.tensors.items() if "#" in n}
    assert stored == {f"layers.{i}.ffn.out.w{part}": 24 - closed for i in range(2) for part in ("#index", "#value")}
    served = tiny.host("bert", **QUIET)
    served.load(finished, "a")
    torch.testing.assert_close(run(served, "a"), run(host, "a"), atol=1e-6, rtol=1e-6)


# --- diff pruning -------------------------------------------------------------------------------------------

TARGET = 0.03


def with_differences(differences: dict[str, Tensor]) -> Tensor:
    """The hidden states of the plain Hugging Face model with these added to its weights."""
    model = tiny.model("bert", **QUIET)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += differences.get(name, 0.0)
        rows = tiny.rows_of(BATCH)
        return torch.cat([model(input_ids=ids[None]).last_hidden_state[0] for ids in rows])


def dense(tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    out = {n: torch.zeros(shape) for n, shape in shapes.items() if f"{n}#index" in tensors}
    for name, t in out.items():
        t.view(-1)[tensors[f"{name}#index"].long()] = tensors[f"{name}#value"]
    return out


def gated_differences(host: inlay.Host) -> dict[str, Tensor]:
    tensors = host.adapter("a").tensors
    of_group = {n: settled(tensors[g]) for n in tensors if (g := f"{n}.group.gate") in tensors}
    own = {n: t * settled(tensors[f"{n}.gate"]) for n, t in tensors.items() if not n.endswith(".gate")}
    return {n: t * of_group.get(n, 1.0) for n, t in own.items()}


either = pytest.mark.parametrize("structured", ["false", "true"])


@either
def test_diff_pruning_adds_gated_differences_to_the_weights(structured):
    host = randomised(f"diffprune:target={TARGET},structured={structured}")
    assert any(n.endswith(".group.gate") for n in host.adapter("a").tensors) == (structured == "true")
    torch.testing.assert_close(run(host, "a"), with_differences(gated_differences(host)), atol=1e-5, rtol=1e-5)
    first = run(host, "a", (1, 0))
    assert torch.equal(first, run(host, "a", (1, 0)))
    assert not torch.allclose(first, run(host, "a", (1, 1)), atol=1e-3)
    assert not torch.allclose(first, run(host, "a"), atol=1e-3)


@either
def test_diff_prunings_noise_follows_the_formula(structured):
    host = randomised(f"diffprune:{GATE},structured={structured}")
    keys, slot, tensors = host.keys({"a": (1, 0)}), host.slot("a"), host.adapter("a").tensors
    differences = {}
    for name in (n for n in tensors if not n.endswith(".gate")):
        u = keys.uniform(slot, f"gate {name}", tuple(tensors[name].shape), tensors[name].device)
        differences[name] = tensors[name] * sampled(tensors[f"{name}.gate"], u)
        if structured == "true":
            u = keys.uniform(slot, f"gate {name}.group", (1,), tensors[name].device)
            differences[name] *= sampled(tensors[f"{name}.group.gate"], u)
    torch.testing.assert_close(run(host, "a", (1, 0)), with_differences(differences), atol=1e-5, rtol=1e-5)


def test_diff_prunings_penalty_counts_every_gate_of_the_base():
    host = randomised(f"diffprune:l0=0.25,{GATE}")
    weights = host.forward.bank.slot(host.slot("a")).weights
    log_a = torch.cat([t.flatten() for t in gates(host).values()])
    assert len(log_a) == host.base.sites.size
    is_open = torch.sigmoid(log_a - TEMPERATURE * math.log(-LOW / HIGH))
    torch.testing.assert_close(weights.method.penalty(weights.tensors).detach(), 0.25 * is_open.sum())


def test_a_structured_difference_is_used_where_both_gates_are_open():
    host = randomised(f"diffprune:l0=0.25,structured=true,{GATE}")
    weights = host.forward.bank.slot(host.slot("a")).weights
    is_open = {n: torch.sigmoid(t - TEMPERATURE * math.log(-LOW / HIGH)) for n, t in gates(host).items()}
    names = list(host.base.sites.parameters)
    expected = sum((is_open[f"{n}.gate"] * is_open[f"{n}.group.gate"]).sum() for n in names)
    penalty = weights.method.penalty(weights.tensors)
    torch.testing.assert_close(penalty.detach(), 0.25 * expected)
    penalty.backward()
    matrix = "encoder.layer.0.output.dense.weight"
    assert weights.tensors[f"{matrix}.group.gate"].grad > 10 * weights.tensors[f"{matrix}.gate"].grad.max()
    left = weights.method.gates_left(host.adapter("a").tensors)
    assert (left["all"]["of"], left["groups"]["of"]) == (host.base.sites.size, len(names))


def test_a_shut_group_leaves_nothing_of_its_matrix():
    host = randomised("diffprune:target=1,structured=true")
    shut = "encoder.layer.1.attention.self.value.weight"
    tensors = host.forward.bank.slot(host.slot("a")).weights.tensors
    with torch.no_grad():
        for name, gate in tensors.items():
            if name.endswith(".group.gate"):
                gate.fill_(-5.0 if name.startswith(shut) else 5.0)
    kept = dense(host.adapter("a", finish=True).tensors, host.base.sites.parameters)
    assert not kept[shut].any()
    assert all(kept[name].any() for name in kept if name != shut)


@either
def test_finishing_keeps_exactly_the_budget_and_the_largest(structured):
    host = randomised(f"diffprune:target={TARGET},structured={structured}")
    differences = gated_differences(host)
    kept = host.adapter("a", finish=True).tensors
    assert all(n.endswith(("#index", "#value")) for n in kept)
    budget = int(TARGET * host.base.sites.size)
    assert sum(t.numel() for n, t in kept.items() if n.endswith("#value")) == budget
    magnitudes = torch.cat([t.flatten().abs() for t in differences.values()]).sort(descending=True).values
    smallest = min(t.abs().min() for n, t in kept.items() if n.endswith("#value") and t.numel())
    assert smallest >= magnitudes[budget - 1]
    for name, value in dense(kept, host.base.sites.parameters).items():
        torch.testing.assert_close(value, differences[name] * (value != 0))


@pytest.fixture
def pruned(tmp_path) -> inlay.Adapter:
    adapter = randomised(f"diffprune:target={TARGET}").adapter("a", finish=True)
    return inlay.Adapter.read(adapter.save(tmp_path / "a.safetensors"))


def test_a_pruned_adapter_is_the_base_with_a_sparse_difference(pruned):
    host = tiny.host("bert", **QUIET)
    host.load(pruned, "a")
    differences = dense(pruned.tensors, host.base.sites.parameters)
    torch.testing.assert_close(run(host, "a"), with_differences(differences), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(run(host, "a"), with_differences({}), atol=1e-2)
    assert torch.equal(run(host, "a", (1, 0)), run(host, "a"))  # no gates, no noise
    assert host.forward.bank.slot(host.slot("a")).weights.method.penalty(host.adapter("a").tensors) is None


@pytest.mark.parametrize("finish", [False, True])
def test_tuning_again_moves_the_kept_values_and_nothing_else(pruned, finish):
    host = tiny.host("bert", **QUIET)
    host.load(pruned, "a")
    optimiser = torch.optim.Adam(host.parameters(), lr=0.01)
    losses = []
    for step in range(5):
        optimiser.zero_grad()
        loss = (run(host, "a", (1, step)) - 1).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]

    tuned = host.adapter("a", finish=finish).tensors
    assert set(tuned) == set(pruned.tensors)
    moved = 0
    for name, tensor in tuned.items():
        if name.endswith("#index"):
            assert torch.equal(tensor, pruned.tensors[name])
        else:
            assert tensor.shape == pruned.tensors[name].shape
            moved += int((tensor != pruned.tensors[name]).sum())
    assert moved > 100
    differences = dense(tuned, host.base.sites.parameters)
    assert sum(int(t.count_nonzero()) for t in differences.values()) <= int(TARGET * host.base.sites.size)
    torch.testing.assert_close(run(host, "a"), with_differences(differences), atol=1e-5, rtol=1e-5)


# --- both, attached to a model ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["adapterbias:l0=0.01", "adapterbias:l0=0.01,share=alpha", "diffprune:target=1,structured=true"]
)
def test_an_attached_adapter_finishes_to_what_it_computed(spec):
    model = tiny.model("bert", **QUIET, attention_probs_dropout_prob=0.0)
    attached = inlay.attach(model, spec)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for n, t in attached.tensors.items():
            if t.requires_grad:
                t.copy_(torch.randn(t.shape, generator=random) * (1.0 if n.endswith("gate") else 0.1))
        expected = [model(input_ids=ids[None]).last_hidden_state[0] for ids in tiny.rows_of(BATCH)]
        noisy = [model.train()(input_ids=tiny.ids_of(BATCH)[None, :5]).last_hidden_state[0] for _ in range(2)]
    assert not torch.allclose(*noisy, atol=1e-4)
    assert not torch.allclose(noisy[0], expected[0], atol=1e-4)
    finished = attached.adapter(finish=True)
    assert not any(n.endswith(".gate") for n in finished.tensors)
    host = tiny.host("bert", **QUIET)
    host.load(finished, "a")
    torch.testing.assert_close(run(host, "a"), torch.cat(expected), atol=1e-5, rtol=1e-5)
