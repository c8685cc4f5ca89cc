"""Mixout against its paper (Lee et al. 2020): ((1 - M) theta + M theta_0 - p theta_0) / (1 - p).

M is read off the mixed parameters themselves: where it is one they are exactly theta_0, so the tests do not
depend on how masks are drawn.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

import inlay
from inlay.bank.noise import Keys
from inlay.bank.passes import BankPass
from inlay.bank.planning import owners_of, plan_runs

P = 0.4
BANKED = ["houlsby:size=5,init=0.3", "adapterbias", "lora:rank=3", "bitfit", "norms"]
WEIGHTS = ["finetune", "finetune:top=1"]
BATCH = inlay.Batch.of([[5, 6, 7, 8, 9], [10, 11, 12]])
Tensors = dict[str, Tensor]


def with_mixout(spec: str, unit: str = "neuron", p: float = P) -> str:
    return f"{spec}{',' if ':' in spec else ':'}mixout={p},mixout_unit={unit}"


def mixed(host: inlay.Host, name: str, keys: Keys) -> tuple[Tensors, Tensors, Tensors]:
    """An adapter's parameters as one training pass sees them, as they are, and as they were at the start.

    For weight-level adapters these are the base's weights with the difference; theta_0 is the base.
    """
    slot, base = host.slot(name), host.base
    if (weights := host.forward.bank.slot(slot).weights) is not None:
        start = {n: p.detach().clone() for n, p in base.model.named_parameters() if n in weights.tensors}
        now = {n: start[n] + difference.detach() for n, difference in weights.tensors.items()}
        return {n: t.detach() for n, t in weights.effective(base, slot, keys).items()}, now, start
    bank, seen = host.forward.bank, {}
    runs = plan_runs(bank, owners_of(bank, np.array([slot])), np.array([0, 4]), "layers", None)
    state = BankPass(bank, runs, None, keys, pooler=True)
    for part in bank.slot(slot).parts:
        for delta, tensors, route in state.at(part.site):
            if delta == part.delta.bucketed():
                true_size = {n: tuple(slice(0, k) for k in p.shape) for n, p in part.delta.params(part.site).items()}
                entry = route.segments[0][2]
                seen |= {full: tensors[n][(entry, *true_size[n])].detach() for n, full in part.names().items()}
    method = inlay.parse_method(bank.slot(slot).method)
    start = method.initial(base.sites, seed=3)
    constants = {n for n, p in method.params(base.sites).items() if p.role != "trained"}
    return tuple({n: t for n, t in d.items() if n not in constants} for d in (seen, bank.read(slot), start))


def host_with(spec: str) -> inlay.Host:
    host = tiny.host("bert", num_hidden_layers=2)
    host.add("a", spec, seed=3)
    tiny.shake(host, "a")
    return host


@pytest.mark.parametrize("unit", ["element", "neuron"])
@pytest.mark.parametrize("spec", BANKED + WEIGHTS)
def test_mixed_parameters_follow_the_papers_formula(spec, unit):
    host = host_with(with_mixout(spec, unit))
    seen, now, start = mixed(host, "a", host.keys({"a": (1, 0)}))
    assert set(seen) == set(start)
    count = dropped = 0
    for name, theta in now.items():
        theta_0, value = start[name], seen[name]
        m = torch.isclose(value, theta_0, atol=1e-7, rtol=1e-6).float()
        expected = ((1 - m) * theta + m * theta_0 - P * theta_0) / (1 - P)
        torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-5, msg=name)
        count, dropped = count + m.numel(), dropped + m.sum().item()
    assert abs(dropped / count - P) < (0.02 if count > 5000 and unit == "element" else 0.1)


@pytest.mark.parametrize("spec", ["houlsby:size=5,init=0.3", "lora:rank=3"])
def test_a_unit_of_neurons_is_an_input_with_all_its_outgoing_weights(spec):
    host = host_with(with_mixout(spec, "neuron"))
    seen, _, start = mixed(host, "a", host.keys({"a": (1, 0)}))
    whole = {n: (seen[n] == start[n]).float().mean(1) for n in start if start[n].dim() == 2}  # [in, out]: per input
    assert whole
    assert all(set(share.tolist()) <= {0.0, 1.0} for share in whole.values())
    assert 0 < torch.cat(list(whole.values())).mean() < 1

    host = host_with(with_mixout(spec, "element"))
    seen, _, start = mixed(host, "a", host.keys({"a": (1, 0)}))
    assert any(0 < share < 1 for n in whole for share in (seen[n] == start[n]).float().mean(1).tolist())


def test_fine_tuning_drops_whole_inputs_of_linear_layers_and_whole_words():
    host = host_with(with_mixout("finetune", "neuron"))
    seen, _, start = mixed(host, "a", host.keys({"a": (1, 0)}))
    for name in (n for n in start if start[n].dim() == 2):
        per_neuron = 1 if "embeddings" in name else 0  # a table is [words, d], a linear layer [out, in]
        share = (seen[name] == start[name]).float().mean(per_neuron)
        assert set(share.tolist()) <= {0.0, 1.0}, name
    assert (seen["encoder.layer.0.output.dense.weight"] == start["encoder.layer.0.output.dense.weight"]).any()


@pytest.mark.thin(1)
@pytest.mark.parametrize("unit", ["element", "neuron"])
@pytest.mark.parametrize("spec", ["houlsby:size=5,init=0.3", "finetune:top=1"])
def test_the_mean_over_many_steps_is_the_parameter_itself(spec, unit):
    host, steps = host_with(with_mixout(spec, unit, p=0.5)), 300
    total: Tensors = {}
    for step in range(steps):
        seen, now, start = mixed(host, "a", host.keys({"a": (1, step)}))
        total = {n: total.get(n, 0) + t for n, t in seen.items()}
    errors = torch.cat([((total[n] / steps - now[n]) / (now[n] - start[n])).flatten() for n in now])
    assert errors.abs().max() < 6 / steps**0.5  # keep is 0 or 2: its standard deviation is 1
    assert errors.mean().abs() < 0.02


@pytest.mark.parametrize("spec", BANKED + WEIGHTS)
def test_a_training_pass_runs_with_the_mixed_parameters_and_without_dropout(spec):
    host = host_with(with_mixout(spec))
    host.add("plain", spec)
    keys = host.keys({"a": (1, 0)})
    seen, _, start = mixed(host, "a", keys)
    slot = host.slot("plain")
    if (weights := host.forward.bank.slot(slot).weights) is not None:
        with torch.no_grad():
            for name, tensor in weights.tensors.items():
                tensor.copy_(seen[name] - start[name])
    else:
        host.forward.bank.write(slot, host.forward.bank.read(slot) | seen)
    trained, evaluated = host.hidden(BATCH, ["a", "a"], keys), host.hidden(BATCH, ["plain", "plain"])
    torch.testing.assert_close(trained.states, evaluated.states, atol=1e-5, rtol=1e-5)
    # positive control: the same adapter without mixout does have dropout
    dropped = host.hidden(BATCH, ["plain", "plain"], host.keys({"plain": (1, 0)}))
    assert not torch.allclose(dropped.states, evaluated.states, atol=1e-2)


@pytest.mark.parametrize("spec", ["lora:sites=pooler", "finetune"])
def test_the_pooler_is_mixed_too(spec):
    host = tiny.host("bert", num_hidden_layers=2)
    host.add("a", with_mixout(spec), labels=2, pool="pooler", seed=3)
    tiny.shake(host, "a")
    keys = host.keys({"a": (1, 0)})
    seen = mixed(host, "a", keys)[0]
    first = torch.stack([row[0] for row in host.hidden(BATCH, ["a", "a"], keys).rows()])
    weight, bias = (p.detach() for p in host.base.model.pooler.dense.parameters())
    if spec == "finetune":
        weight, bias = seen["pooler.dense.weight"], seen["pooler.dense.bias"]
    else:
        weight = weight + 2.0 * (seen["pooler.down"] @ seen["pooler.up"]).T
    head = host.forward.bank.read(host.slot("a"))
    expected = torch.tanh(first @ weight.T + bias) @ head["head.weight"] + head["head.bias"]
    logits = torch.stack(host.logits(BATCH, ["a", "a"], keys))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", BANKED + WEIGHTS)
def test_evaluation_is_as_without_mixout(spec):
    mixing, plain = host_with(with_mixout(spec)), host_with(spec)
    evaluated = mixing.hidden(BATCH, ["a", "a"]).states
    assert torch.equal(evaluated, plain.hidden(BATCH, ["a", "a"]).states)
    trained = mixing.hidden(BATCH, ["a", "a"], mixing.keys({"a": (1, 0)})).states
    assert not torch.allclose(trained, evaluated, atol=1e-2)


@pytest.mark.parametrize("spec", ["houlsby:size=5,init=0.3", "adapterbias", "finetune"])
def test_neighbours_in_the_batch_are_untouched(spec):
    host = host_with(with_mixout(spec))
    for name in ("trained", "evaluated"):  # in the group of the mixing one, if it is banked
        host.add(name, "houlsby:size=5,init=0.3" if spec == "finetune" else spec)
        tiny.shake(host, name, seed=5)
    batch = inlay.Batch.of([[5, 6, 7], [8, 9, 10, 11], [12, 13], [14, 15, 16], [17, 18]])
    names = ["trained", "a", "evaluated", None, "a"]

    def run(steps: dict[str, tuple[int, int]]) -> list[Tensor]:
        return host.hidden(batch, names, host.keys(steps)).rows()

    mixing, still = run({"trained": (2, 0), "a": (1, 0)}), run({"trained": (2, 0)})
    for i, name in enumerate(names):
        assert torch.equal(mixing[i], still[i]) == (name != "a"), name
    assert not torch.equal(still[0], run({})[0])  # it does train, with its own dropout


@pytest.mark.parametrize("unit", ["element", "neuron"])
@pytest.mark.parametrize("spec", ["houlsby:size=5,init=0.3", "finetune"])
def test_what_is_dropped_gets_no_gradient(spec, unit):
    host = host_with(with_mixout(spec, unit))
    keys = host.keys({"a": (1, 0)})
    seen, _, start = mixed(host, "a", keys)
    host.hidden(BATCH, ["a", "a"], keys).states.square().sum().backward()
    reached = 0
    for name, gradient in host.gradients("a").items():
        if name.startswith("pooler"):
            continue
        dropped = seen[name] == start[name]
        assert not gradient[dropped].any(), name
        reached += int(gradient[~dropped].count_nonzero())
    assert reached > 100


def test_the_start_is_rebuilt_from_spec_shape_and_seed(tmp_path):
    spec = with_mixout("houlsby:size=5,init=0.3")
    host = host_with(spec)
    saved = host.adapter("a").save(tmp_path / "a.safetensors")
    other = tiny.host("bert", num_hidden_layers=2)
    other.load(inlay.Adapter.read(saved), "again")
    keys = {"a": (1, 0)}
    first = host.hidden(BATCH, ["a", "a"], host.keys(keys)).states
    assert torch.equal(first, other.hidden(BATCH, ["again"] * 2, other.keys({"again": (1, 0)})).states)
    # positive control: another seed is another start, though the adapter's tensors are the same
    stranger = copy.copy(inlay.Adapter.read(saved))
    object.__setattr__(stranger, "seed", 4)
    other.load(stranger, "stranger")
    assert torch.equal(other.hidden(BATCH, ["stranger"] * 2).states, other.hidden(BATCH, ["again"] * 2).states)
    strange = other.hidden(BATCH, ["stranger"] * 2, other.keys({"stranger": (1, 0)})).states
    assert not torch.allclose(strange, first, atol=1e-3)


@pytest.mark.parametrize("spec", ["houlsby:size=5,init=0.3", "lora", "finetune"])
def test_an_attached_model_mixes_in_training_without_dropout(spec):
    model = tiny.model("bert", num_hidden_layers=2)
    attached = inlay.attach(model, with_mixout(spec), seed=3)
    ids = torch.tensor([[5, 6, 7, 8]])
    evaluated = model(input_ids=ids).last_hidden_state
    # at the start theta is theta_0: mixing changes nothing, and there is no dropout to change anything either
    torch.testing.assert_close(model.train()(input_ids=ids).last_hidden_state, evaluated, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        for p in attached.tensors.values():
            if p.requires_grad:
                p += torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1
    first, second = (model(input_ids=ids).last_hidden_state for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-3)  # a new draw each time
    again = [model.eval()(input_ids=ids).last_hidden_state for _ in range(2)]
    assert torch.equal(*again)
