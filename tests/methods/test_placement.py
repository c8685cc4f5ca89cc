"""Where each method acts: against BERT written out from its formulas, in evaluation and in training.

The oracle shares no code with the package: plain tensor functions in float64 on the weights of a tiny model.
Adapters act after a sublayer's dropout and before its residual; LoRA, BitFit, norms and fine-tuning are the same
as changed weights, so their change at an output projection is inside its dropout. In training the oracle applies
the same dropout masks: the host's are keyed and can be drawn again, the attached model's are recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor

import inlay
from inlay.bank import noise

D, HEADS, WIDE, LAYERS, DROPOUT = 16, 2, 64, 2, 0.25
SHAPE = {
    "num_hidden_layers": LAYERS,
    "intermediate_size": WIDE,
    "hidden_dropout_prob": DROPOUT,
    "attention_probs_dropout_prob": 0.0,
}
TOLERANCE = {"atol": 1e-5, "rtol": 0.0, "check_dtype": False}

Weights = dict[str, Tensor]
Adapt = Callable[[str, int, Tensor, Tensor, Tensor], Tensor | float]
"""(site, layer, input of the projection, output, input of the sublayer) -> what an adapter adds."""
Drop = Callable[[str, int, Tensor], Tensor]
"""(path, layers begun, y) -> y after dropout."""


# --- the oracle ---------------------------------------------------------------------------------------------


def bert(w: Weights, ids: Tensor, adapt: Adapt, drop: Drop, place: str = "after dropout") -> list[Tensor]:
    """The hidden states [n, d] of one row: the embedding's and each layer's."""
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(w, "embeddings.LayerNorm", x + w["embeddings.position_embeddings.weight"][: len(ids)])
    states = [drop("embeddings.dropout", 0, x)]
    for i in range(LAYERS):

        def sublayer(path: str, site: str, inner: Tensor, below: Tensor, i: int = i) -> Tensor:
            y = linear(w, f"{path}.dense", inner)
            if place == "before dropout":
                y = y + adapt(site, i, inner, y, below)
            y = drop(f"{path}.dropout", i + 1, y)
            if place == "after dropout":
                y = y + adapt(site, i, inner, y, below)
            out = below + y
            if place == "after residual":
                out = out + adapt(site, i, inner, out, below)
            out = norm(w, f"{path}.LayerNorm", out)
            return out + adapt(site, i, inner, out, below) if place == "after norm" else out

        layer, x = f"encoder.layer.{i}", states[-1]
        q, k, v = (linear(w, f"{layer}.attention.self.{name}", x) for name in ("query", "key", "value"))
        x = sublayer(f"{layer}.attention.output", "attn.out", attention(q, k, v), x)
        inner = gelu(linear(w, f"{layer}.intermediate.dense", x))
        states.append(sublayer(f"{layer}.output", "ffn.out", inner, x))
    return states


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return normalise(x, 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]


def normalise(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = []
    for h in range(HEADS):
        columns = slice(h * D // HEADS, (h + 1) * D // HEADS)
        scores = q[:, columns] @ k[:, columns].T / math.sqrt(D // HEADS)
        heads.append(scores.exp() / scores.exp().sum(-1, keepdim=True) @ v[:, columns])
    return torch.cat(heads, dim=-1)


# --- what each method does to it ----------------------------------------------------------------------------

MODULES = {
    "attn.q": "attention.self.query",
    "attn.k": "attention.self.key",
    "attn.v": "attention.self.value",
    "attn.out": "attention.output.dense",
    "attn.norm": "attention.output.LayerNorm",
    "ffn.in": "intermediate.dense",
    "ffn.out": "output.dense",
    "ffn.norm": "output.LayerNorm",
}
NAMES = {f"layers.{i}.{kind}": f"encoder.layer.{i}.{path}" for i in range(LAYERS) for kind, path in MODULES.items()}
NAMES["embed.norm"] = "embeddings.LayerNorm"


def changed_norms(w: Weights, t: Weights) -> Weights:
    w = dict(w)
    for site, path in NAMES.items():
        if site.endswith("norm") and f"{site}.gamma" in t:
            w[f"{path}.weight"] = w[f"{path}.weight"] + t[f"{site}.gamma"]
            w[f"{path}.bias"] = w[f"{path}.bias"] + t[f"{site}.beta"]
    return w


def changed_biases(w: Weights, t: Weights) -> Weights:
    w = dict(w)
    for site, path in NAMES.items():
        if site.startswith("layers"):
            w[f"{path}.bias"] = w[f"{path}.bias"] + t[f"{site}.bias"]
    return w


def low_rank(scale: float) -> Callable[[Weights, Weights], Weights]:
    def change(w: Weights, t: Weights) -> Weights:
        w = dict(w)
        for site, path in NAMES.items():
            if f"{site}.down" in t:
                w[f"{path}.weight"] = w[f"{path}.weight"] + scale * (t[f"{site}.down"] @ t[f"{site}.up"]).T
        return w

    return change


def changed_weights(w: Weights, t: Weights) -> Weights:
    return {name: value + t.get(name, 0.0) for name, value in w.items()}


def nothing(t: Weights) -> Adapt:
    return lambda site, i, x, y, below: 0.0


def bottleneck(
    row: str = "layers.{i}.{site}",
    where: tuple[str, ...] = ("attn.out", "ffn.out"),
    act: Callable[[Tensor], Tensor] = gelu,
    parallel: bool = False,
    depth: int = 1,
    inner_norm: bool = False,
) -> Callable[[Weights], Adapt]:
    def build(t: Weights) -> Adapt:
        def adapt(site: str, i: int, x: Tensor, y: Tensor, below: Tensor) -> Tensor | float:
            if site not in where:
                return 0.0
            name = row.format(i=i, site=site)
            h = below if parallel else y
            if inner_norm:
                h = normalise(h, 1e-5) * (1 + t[f"{name}.gamma"]) + t[f"{name}.beta"]
            h = act(h @ t[f"{name}.down"] + t[f"{name}.down_bias"])
            for j in range(1, depth):
                h = act(h @ t[f"{name}.hidden{j}"] + t[f"{name}.hidden{j}_bias"])
            return h @ t[f"{name}.up"] + t[f"{name}.up_bias"]

        return adapt

    return build


def token_shift(v: str = "layers.{i}.ffn.out", alpha: str | None = "layers.{i}.ffn.out") -> Callable[[Weights], Adapt]:
    def build(t: Weights) -> Adapt:
        def adapt(site: str, i: int, x: Tensor, y: Tensor, below: Tensor) -> Tensor | float:
            if site != "ffn.out":
                return 0.0
            shift = t[f"{v.format(i=i)}.v"]
            if alpha is None:
                return shift
            name = alpha.format(i=i)
            return ((x * t[f"{name}.w"][:, 0]).sum(-1, keepdim=True) + t[f"{name}.b"]) * shift

        return adapt

    return build


def last(t: Weights, states: list[Tensor]) -> Tensor:
    return states[-1]


def mixed(t: Weights, states: list[Tensor]) -> Tensor:
    return states[-1] + sum(weight * state for weight, state in zip(t["output.mix"], states, strict=True))


@dataclass(frozen=True)
class Case:
    """A method, as changed weights, as an adapter after the dropout, and as what is made of the states."""

    spec: str
    change: Callable[[Weights, Weights], Weights] = changed_norms
    adapt: Callable[[Weights], Adapt] = nothing
    output: Callable[[Weights, list[Tensor]], Tensor] = field(default=last)

    def __call__(
        self, w: Weights, t: Weights, ids: Tensor, drop: Drop | None = None, place: str = "after dropout"
    ) -> Tensor:
        w, t = ({name: value.double() for name, value in some.items()} for some in (w, t))
        return self.output(t, bert(self.change(w, t), ids, self.adapt(t), drop or (lambda path, depth, y: y), place))


HOULSBY = Case("houlsby:size=5", adapt=bottleneck())
ADAPTERBIAS = Case("adapterbias", adapt=token_shift())
LORA = Case("lora:rank=3,alpha=6,sites=attn.out+ffn.out", low_rank(2.0))
CASES = [
    HOULSBY,
    Case("houlsby:size=5,norms=false,activation=relu", adapt=bottleneck(act=lambda x: x.clamp(min=0))),
    Case("houlsby:size=5,activation=tanh", adapt=bottleneck(act=torch.tanh)),
    Case("houlsby:size=5,where=attn", adapt=bottleneck(where=("attn.out",))),
    Case("houlsby:size=5,where=ffn", adapt=bottleneck(where=("ffn.out",))),
    Case("houlsby:size=5,parallel=true", adapt=bottleneck(parallel=True)),
    Case("houlsby:size=5,depth=2", adapt=bottleneck(depth=2)),
    Case("houlsby:size=5,inner_norm=true", adapt=bottleneck(inner_norm=True)),
    Case("houlsby:size=5,share=sublayers", adapt=bottleneck(row="layers.{i}")),
    Case("houlsby:size=5,share=2,norms=true", adapt=bottleneck(row="layers.0-1")),
    ADAPTERBIAS,
    Case("adapterbias:share=v", adapt=token_shift(v="shared")),
    Case("adapterbias:share=alpha", adapt=token_shift(alpha="shared")),
    Case("adapterbias:share=both", adapt=token_shift(v="shared", alpha="shared")),
    Case("adapterbias:alpha=false", adapt=token_shift(alpha=None)),
    Case("bitfit", changed_biases),
    LORA,
    Case("lora:rank=3,alpha=6", low_rank(2.0)),
    Case("lora:rank=2,alpha=1,sites=attn.q+attn.k+attn.v+attn.out+ffn.in+ffn.out", low_rank(0.5)),
    Case("norms"),
    Case("frozen", output=mixed),
    Case("finetune", changed_weights),
    Case("finetune:top=1", changed_weights),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
train_and_eval = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])

# --- the host -----------------------------------------------------------------------------------------------

ROWS = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14], [15, 16, 17, 18], [19, 20, 21]]
ADAPTERS = ["a", None, "a", "b", "a"]
KEY = (11, 3)


class Bench:
    """A host with two adapters of one method at random values, and the batch that mixes them with the base."""

    def __init__(self, case: Case):
        model = tiny.model("bert", **SHAPE)
        self.weights = {name: p.clone() for name, p in model.named_parameters()}
        self.case = case
        self.host = inlay.Host(model)
        for seed, name in enumerate(("a", "b")):
            self.host.add(name, case.spec, labels=2)
            tiny.shake(self.host, name, seed)

    def tensors(self, name: str) -> Weights:
        return self.host.read(name)

    def run(self, training: bool, packed: bool | None = None) -> list[Tensor]:
        """Only `a` trains; `b` and the base in the same batch are evaluated."""
        keys = self.host.keys({"a": KEY}) if training else None
        with torch.set_grad_enabled(training):
            return self.host.hidden(inlay.Batch.of(ROWS), ADAPTERS, keys, packed).rows()

    def expect(self, row: int, training: bool, case: Case | None = None, place: str = "after dropout") -> Tensor:
        ids, name = torch.tensor(ROWS[row]), ADAPTERS[row]
        if name is None:
            return Case("")(self.weights, {}, ids)
        drop = self._drop(row) if training and name == "a" else None
        return (case or self.case)(self.weights, self.tensors(name), ids, drop, place)

    def _drop(self, row: int) -> Drop:
        """The keyed masks of adapter `a`: drawn for all of its tokens, in the order of its rows."""
        keys, slot = self.host.keys({"a": KEY}), self.host.slot("a")
        mine = [len(ROWS[i]) for i, name in enumerate(ADAPTERS) if name == "a"]
        before = sum(len(ROWS[i]) for i in range(row) if ADAPTERS[i] == "a")

        def drop(path: str, depth: int, y: Tensor) -> Tensor:
            place = noise.number("dropout", path, depth - 1) if depth else noise.number("dropout", path)
            key, number = torch.full((sum(mine),), keys.number(slot)).int(), torch.arange(sum(mine)).int()
            kept = noise.keep_lanes(key, number, torch.tensor(place).int(), D) >= round(DROPOUT * 65536) - 32768
            return y * kept[before : before + len(y)].double() / (1 - DROPOUT)

        return drop


@pytest.mark.thin(40)
@every_case
@train_and_eval
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_host_computes_the_formulas(case, training, packed):
    bench = Bench(case)
    for row, states in enumerate(bench.run(training, packed)):
        torch.testing.assert_close(states, bench.expect(row, training), **TOLERANCE)


@every_case
def test_gradients_are_those_of_the_formulas(case):
    bench = Bench(case)
    tensors = {name: t.double().requires_grad_(t.is_floating_point()) for name, t in bench.tensors("a").items()}
    bench.tensors = lambda name: tensors
    mine = [row for row, name in enumerate(ADAPTERS) if name == "a"]
    pull = [torch.randn(len(ROWS[row]), D, generator=torch.Generator().manual_seed(row)) for row in mine]
    states = bench.run(True)
    sum((states[row] * p).sum() for row, p in zip(mine, pull, strict=True)).backward()
    sum((bench.expect(row, True) * p).sum() for row, p in zip(mine, pull, strict=True)).backward()
    found = {name: g for name, g in bench.host.gradients("a").items() if not name.startswith(("head.", "pooler."))}
    assert found
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, tensors[name].grad, atol=1e-4, rtol=1e-4, check_dtype=False, msg=name)


@pytest.mark.parametrize(
    ("case", "place"),
    [(HOULSBY, "after residual"), (HOULSBY, "after norm"), (ADAPTERBIAS, "after norm")],
    ids=lambda value: getattr(value, "spec", value),
)
@train_and_eval
def test_an_adapter_further_up_would_be_noticed(case, place, training):
    bench = Bench(case)
    assert distance(bench.run(training)[0], bench.expect(0, training, place=place)) > 0.05


@pytest.mark.parametrize("case", [HOULSBY, ADAPTERBIAS], ids=lambda case: case.spec)
def test_an_adapter_before_the_dropout_would_be_noticed_in_training_only(case):
    bench = Bench(case)
    torch.testing.assert_close(bench.run(False)[0], bench.expect(0, False, place="before dropout"), **TOLERANCE)
    assert distance(bench.run(True)[0], bench.expect(0, True, place="before dropout")) > 0.05


def test_lora_outside_the_dropout_would_be_noticed_in_training_only():
    def outside(t: Weights) -> Adapt:
        return lambda site, i, x, y, below: 2.0 * x @ t[f"layers.{i}.{site}.down"] @ t[f"layers.{i}.{site}.up"]

    bench, wrong = Bench(LORA), Case(LORA.spec, adapt=outside)
    torch.testing.assert_close(bench.run(False)[0], bench.expect(0, False, wrong), **TOLERANCE)
    assert distance(bench.run(True)[0], bench.expect(0, True, wrong)) > 0.05


def test_an_alpha_that_does_not_read_each_tokens_own_activation_would_be_noticed():
    def same_for_all(t: Weights) -> Adapt:
        right = token_shift()(t)
        return lambda site, i, x, y, below: right(site, i, x.mean(0, keepdim=True), y, below)

    bench = Bench(ADAPTERBIAS)
    assert bench.tensors("a")["layers.0.ffn.out.w"].shape == (WIDE, 1)
    assert distance(bench.run(False)[0], bench.expect(0, False, Case("", adapt=same_for_all))) > 0.05


def test_a_parallel_adapter_that_reads_the_output_would_be_noticed():
    bench = Bench(Case("houlsby:size=5,parallel=true", adapt=bottleneck(parallel=True)))
    assert distance(bench.run(False)[0], bench.expect(0, False, HOULSBY)) > 0.05


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


# --- an attached adapter ------------------------------------------------------------------------------------


@every_case
@train_and_eval
def test_attached_computes_the_formulas(case, training, monkeypatch):
    model = tiny.model("bert", **SHAPE).train(training)
    weights = {name: p.clone() for name, p in model.named_parameters()}
    attached = inlay.attach(model, case.spec)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in attached.tensors.values():
            if p.requires_grad:
                p.copy_(torch.randn(p.shape, generator=random) * 0.3)

    masks: list[Tensor] = []

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training:
            return x
        assert p == DROPOUT
        masks.append(torch.bernoulli(torch.full(x.shape, 1 - p), generator=random) / (1 - p))
        return x * masks[-1]

    monkeypatch.setattr(F, "dropout", dropout)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    states = model(input_ids=ids).last_hidden_state
    assert len(masks) == (1 + 2 * LAYERS if training else 0)

    for row in range(2):
        calls = iter(masks)

        def drop(path: str, depth: int, y: Tensor, row: int = row, calls=calls) -> Tensor:
            return y * next(calls)[row].double()

        expected = case(weights, attached.tensors, ids[row], drop if training else None)
        torch.testing.assert_close(states[row], expected, **TOLERANCE)
        assert next(calls, None) is None
