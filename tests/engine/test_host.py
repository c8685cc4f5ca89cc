"""The host: any mix of adapters and heads in one batch, errors that say what is right, slots that come and go."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import inlay
from inlay.base.fingerprint import fingerprints
from inlay.data.batch import Batch
from inlay.errors import AdapterError, ArchError, BaseError, InlayError, SlotError, SpecError

D = 16


class Case(NamedTuple):
    spec: str
    head: str
    labels: int
    pool: str


CASES = {
    "wide": Case("houlsby:size=9,activation=tanh", "linear", 2, "cls"),
    "narrow": Case("houlsby:size=5,norms=false", "tanh2", 3, "mean"),
    "per layer": Case("houlsby:share=sublayers,size=8", "mlp", 11, "last"),
    "for two layers": Case("houlsby:share=2,size=4", "linear", 11, "tokens"),
    "bias": Case("adapterbias", "linear", 3, "pooler"),
    "shared bias": Case("adapterbias:share=both", "tanh2", 11, "tokens"),
    "low rank": Case("lora:rank=3", "mlp", 2, "pooler"),
    "low rank in the pooler": Case("lora:rank=2,alpha=6,sites=attn.out+pooler", "tanh2", 11, "pooler"),
    "biases": Case("bitfit", "linear", 11, "mean"),
    "norms": Case("norms:layers=top2", "mlp", 2, "tokens"),
    "layer mix": Case("frozen", "mlp", 3, "cls"),
    "top": Case("finetune:top=1", "tanh2", 2, "pooler"),
    "all weights": Case("finetune", "linear", 11, "last"),
    "sparse": Case("diffprune:target=0.1", "linear", 3, "tokens"),
}


def full_host() -> inlay.Host:
    host = tiny.host()
    for i, (name, case) in enumerate(CASES.items()):
        host.add(name, case.spec, head=case.head, labels=case.labels, pool=case.pool, seed=i)
        tiny.shake(host, name, seed=i)
    return host


def shuffled(names: list[Any], seed: int = 0) -> list[Any]:
    names = list(names)
    random.Random(seed).shuffle(names)
    return names


def rows_of(batch: Batch) -> list[Tensor]:
    return list(tiny.rows_of(batch))


# --- any mix in one batch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_logits_of_a_mixed_batch_equal_each_alone_in_the_order_asked(packed):
    host, names = full_host(), shuffled([*CASES] * 2)
    batch = tiny.batch(len(names), seed=1)
    with torch.no_grad():
        mixed = host.logits(batch, names, packed=packed)
        assert len(mixed) == len(names)
        for i, name in enumerate(names):
            case, length = CASES[name], batch.lengths[i]
            assert mixed[i].shape == ((length, case.labels) if case.pool == "tokens" else (case.labels,)), name
            [alone] = host.logits(batch.take([i]), [name], packed=packed)
            tiny.assert_close(mixed[i], alone, name)


def test_hidden_states_of_a_mixed_batch_with_base_rows_equal_each_alone():
    host, names = full_host(), shuffled([*CASES, None, None, None])
    batch = tiny.batch(len(names), seed=2)
    model = tiny.model("bert")
    with torch.no_grad():
        mixed = host.hidden(batch, names)
        assert sorted(mixed.order) == list(range(len(names)))
        for i, (name, row) in enumerate(zip(names, mixed.rows(), strict=True)):
            tiny.assert_close(row, host.hidden(batch.take([i]), [name]).states, str(name))
            plain = model(input_ids=rows_of(batch)[i][None]).last_hidden_state[0]
            if name is None:
                tiny.assert_close(row, plain, "base row")
            else:
                assert not torch.allclose(row, plain, atol=1e-3), name


def test_a_head_belongs_to_its_adapter():
    """The same method and head, two adapters: swapping their names swaps their answers."""
    host, batch = tiny.host(), tiny.batch(2)
    for i, name in enumerate("ab"):
        host.add(name, "frozen", labels=3, seed=i)
        tiny.shake(host, name, seed=i)
    with torch.no_grad():
        ab, ba = host.logits(batch, ["a", "b"]), host.logits(batch, ["b", "a"])
        assert all(not torch.allclose(x, y, atol=1e-3) for x, y in zip(ab, ba, strict=True))
        [b_on_first] = host.logits(batch.take([0]), ["b"])
    tiny.assert_close(ba[0], b_on_first)


def test_one_row_of_tokens_only():
    host, batch = full_host(), tiny.batch(3)
    with torch.no_grad():
        logits = host.logits(batch, ["shared bias", "norms", "sparse"])
    assert [tuple(x.shape) for x in logits] == [(n, c) for n, c in zip(batch.lengths, (11, 2, 3), strict=True)]


def test_token_types_follow_their_rows_through_the_sorting():
    host = tiny.host()
    host.add("a", "lora")
    host.add("b", "houlsby:size=4,init=0")
    host.add("c", "finetune")
    rows, types = [[5, 6, 7, 8], [9, 10], [11, 12, 13]], [[0, 0, 1, 1], [1, 0], [0, 1, 1]]
    batch, model = Batch.of(rows, types), tiny.model("bert")
    with torch.no_grad():
        for packed in (True, False):
            found = host.hidden(batch, ["c", "b", "a"], packed=packed).rows()
            for row, kinds, states in zip(rows, types, found, strict=True):
                plain = model(input_ids=torch.tensor([row]), token_type_ids=torch.tensor([kinds]))
                tiny.assert_close(states, plain.last_hidden_state[0])
        untyped = host.hidden(Batch.of(rows), ["c", "b", "a"]).rows()
    assert all(not torch.allclose(x, y, atol=1e-3) for x, y in zip(found, untyped, strict=True))


# --- heads and pooling --------------------------------------------------------------------------------------


def head_by_hand(kind: str, tensors: dict[str, Tensor], h: Tensor) -> Tensor:
    inner: dict[str, Callable[[Tensor], Tensor]] = {"tanh2": torch.tanh, "mlp": F.gelu}
    if kind in inner:
        h = inner[kind](h @ tensors["head.dense"] + tensors["head.dense_bias"])
    return h @ tensors["head.weight"] + tensors["head.bias"]


def pooler_by_hand(model: Any, tensors: dict[str, Tensor], first: Tensor, scale: float) -> Tensor:
    """BERT's pooler with an adapter's change: of its weights, or of low rank."""
    weight, bias = model.pooler.dense.weight, model.pooler.dense.bias
    if "pooler.dense.weight" in tensors:
        weight, bias = weight + tensors["pooler.dense.weight"], bias + tensors["pooler.dense.bias"]
    y = first @ weight.T + bias
    if "pooler.down" in tensors:
        y = y + scale * first @ tensors["pooler.down"] @ tensors["pooler.up"]
    return torch.tanh(y)


@pytest.mark.parametrize("name", CASES)
def test_a_head_is_what_its_formula_says(name):
    host, batch, case = full_host(), tiny.batch(3, seed=4), CASES[name]
    model, tensors = tiny.model("bert"), host.adapter(name).tensors
    pools: dict[str, Callable[[Tensor], Tensor]] = {
        "cls": lambda h: h[0],
        "mean": lambda h: h.sum(0) / len(h),
        "last": lambda h: h[-1],
        "pooler": lambda h: pooler_by_hand(model, tensors, h[0], scale=6 / 2),
        "tokens": lambda h: h,
    }
    with torch.no_grad():
        states = host.hidden(batch, [name] * 3).rows()
        logits = host.logits(batch, [name] * 3)
        for h, found in zip(states, logits, strict=True):
            tiny.assert_close(found, head_by_hand(case.head, tensors, pools[case.pool](h)))
        others = [pool for pool in pools if pool not in (case.pool, "tokens")]
        for other in others if case.pool != "tokens" else ():  # another pooling would be noticed
            wrong = head_by_hand(case.head, tensors, pools[other](states[-1]))
            assert not torch.allclose(wrong, logits[-1], atol=1e-3), other


def mirror(host: inlay.Host, name: str, pool: str) -> None:
    """An adapter that changes nothing, with a head that hands on its input."""
    host.add("blank", "lora", labels=D, pool=pool)
    blank = host.adapter("blank")
    host.unload("blank")
    tensors = {**blank.tensors, "head.weight": torch.eye(D), "head.bias": torch.zeros(D)}
    host.load(replace(blank, tensors=tensors), name)


@pytest.mark.parametrize("arch", ["bert", "roberta", "xlm-roberta", "albert", "mpnet", "modernbert", "gpt2"])
def test_pooling_equals_that_of_the_model_itself(arch):
    host, model, batch = tiny.host(arch), tiny.model(arch), tiny.batch(4, seed=5)
    has_pooler = host.base.sites.at("pooler") is not None
    assert has_pooler == (arch not in ("modernbert", "gpt2"))
    pools = ["cls", "mean", "last"] + ["pooler"] * has_pooler
    for pool in pools:
        mirror(host, pool, pool)
    names = [pool for pool in pools for _ in batch.lengths]
    with torch.no_grad():
        found = iter(host.logits(batch.take(list(range(4)) * len(pools)), names))
        outs = [model(input_ids=ids[None]) for ids in rows_of(batch)]
        for out in outs:
            tiny.assert_close(next(found), out.last_hidden_state[0, 0], "cls")
        for out in outs:
            tiny.assert_close(next(found), out.last_hidden_state[0].mean(0), "mean")
        for out in outs:
            tiny.assert_close(next(found), out.last_hidden_state[0, -1], "last")
        for out in outs if has_pooler else ():
            tiny.assert_close(next(found), out.pooler_output[0], "pooler")
    assert next(found, None) is None


@pytest.mark.parametrize(("arch", "expected"), [("bert", "cls"), ("modernbert", "cls"), ("gpt2", "last")])
def test_auto_pooling_is_the_first_token_of_encoders_and_the_last_of_decoders(arch, expected):
    host = tiny.host(arch)
    host.add("a", "lora", labels=2)
    assert host.adapter("a").pool == expected


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_auto_pooling_is_what_a_sentence_encoders_folder_says(tmp_path, monkeypatch, modes, expected):
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    tiny.model("bert").save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "1_Pooling").mkdir()
    (tmp_path / "base" / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": D, **modes}))
    host = inlay.Host(tmp_path / "base", device="cpu")
    host.add("a", "lora", labels=D)
    host.add("b", "lora", labels=2, pool="last")
    assert host.adapter("a").pool == expected
    assert host.adapter("b").pool == "last"
    assert host.adapter("a").base == tiny.host().base.fingerprint


def test_the_pooling_that_auto_chose_travels_with_the_adapter(tmp_path, monkeypatch):
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    tiny.model("bert").save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "1_Pooling").mkdir()
    (tmp_path / "base" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    sentence, plain, batch = inlay.Host(tmp_path / "base", device="cpu"), tiny.host(), tiny.batch(3)
    sentence.add("a", "lora", labels=3)
    tiny.shake(sentence, "a")
    plain.load(sentence.adapter("a"), "a")  # the same weights, but here auto would be cls
    with torch.no_grad():
        for x, y in zip(sentence.logits(batch, ["a"] * 3), plain.logits(batch, ["a"] * 3), strict=True):
            tiny.assert_close(x, y)


# --- errors -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    host = tiny.host()
    host.add("topic", "lora", labels=2)
    host.add("bare", "lora")
    return host


@pytest.fixture
def batch() -> Batch:
    return tiny.batch(2)


def assert_refused(error: type[InlayError], parts: list[str], call: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_an_unknown_name_names_the_nearest(host, batch):
    for call in (host.hidden, host.logits):
        assert_refused(SlotError, ["'topc'", "Did you mean topic?"], lambda call=call: call(batch, ["topic", "topc"]))
    for call in (host.unload, host.adapter, host.gradients, host.slot):
        assert_refused(SlotError, ["'topc'", "Did you mean topic?"], lambda call=call: call("topc"))
    assert_refused(SlotError, ["'topc'"], lambda: host.keys({"topc": (0, 0)}))
    assert_refused(SlotError, ["'a'", "Valid: none"], lambda: tiny.host().hidden(batch, ["a", "a"]))


def test_a_name_can_be_loaded_once(host):
    assert_refused(SlotError, ["'topic' is already loaded", "unload"], lambda: host.add("topic", "bitfit"))
    assert_refused(SlotError, ["'topic' is already loaded"], lambda: host.load(host.adapter("topic")))
    assert_refused(SlotError, ["'topic' is already loaded"], lambda: host.load(host.adapter("bare"), "topic"))
    assert host.names == ["topic", "bare"]
    assert host.adapter("topic").method == "lora"
    assert "topic" in host
    assert "topc" not in host


def test_logits_need_a_head(host, batch):
    assert_refused(SlotError, ["'bare' has no head", "labels"], lambda: host.logits(batch, ["topic", "bare"]))


def test_logits_of_a_base_row_are_refused(host, batch):
    assert_refused(SlotError, ["row 1", "no head"], lambda: host.logits(batch, ["topic", None]))


@pytest.mark.parametrize("labels", [0, []])
def test_an_adapter_without_labels_has_no_head(labels, batch):
    host = tiny.host()
    host.add("a", "lora", labels=labels, head="mlp", pool="mean")
    snapshot = host.adapter("a")
    assert (snapshot.head, snapshot.labels) == (None, ())
    assert not [name for name in snapshot.tensors if name.startswith("head")]
    assert_refused(SlotError, ["'a' has no head"], lambda: host.logits(batch, ["a", "a"]))


def test_a_negative_number_of_labels_is_refused():
    host = tiny.host()
    assert_refused(InlayError, ["label", "-1"], lambda: host.add("a", "lora", labels=-1))
    assert host.names == []


def test_an_unknown_head_or_pooling_names_the_nearest(host):
    add = host.add
    assert_refused(SpecError, ["'linar'", "Did you mean linear?"], lambda: add("n", "lora", labels=2, head="linar"))
    assert_refused(SpecError, ["'men'", "Did you mean mean"], lambda: add("n", "lora", labels=2, pool="men"))
    assert "n" not in host


@pytest.mark.parametrize("arch", ["distilbert", "electra", "modernbert", "llama"])
def test_a_pooler_the_model_does_not_have_is_refused(arch):
    host = tiny.host(arch)
    assert_refused(SpecError, ["no pooler", "mean"], lambda: host.add("a", "lora", labels=2, pool="pooler"))
    assert "a" not in host


def test_as_many_names_as_rows(host, batch):
    for names in (["topic"], ["topic"] * 3, []):
        for call in (host.hidden, host.logits):
            parts = ["2 rows", f"{len(names)} "]
            assert_refused(SlotError, parts, lambda call=call, names=names: call(batch, names))


@pytest.mark.parametrize(("arch", "limit"), [("bert", 40), ("roberta", 38), ("mpnet", 38), ("gpt2", 40), ("llama", 40)])
def test_a_row_may_be_as_long_as_the_base_takes(arch, limit):
    host = tiny.host(arch)
    rows = [[7] * 3, [8] * limit]
    with torch.no_grad():
        assert host.hidden(Batch.of(rows), [None, None]).states.shape == (limit + 3, D)
    rows.append([9] * (limit + 1))
    parts = ["row 2", f"{limit + 1} tokens", f"takes {limit}"]
    assert_refused(InlayError, parts, lambda: host.hidden(Batch.of(rows), [None] * 3))


def test_relative_positions_have_no_limit():
    host = tiny.host("deberta-v2")
    with torch.no_grad():
        assert host.hidden(Batch.of([[7] * 90]), [None]).states.shape == (90, D)


def test_an_empty_row_is_refused_and_named():
    assert_refused(InlayError, ["row 1", "no tokens"], lambda: Batch.of([[5], [], [6]]))
    assert_refused(InlayError, ["no rows"], lambda: Batch.of([]))


# --- loading what does not fit ------------------------------------------------------------------------------


def snapshot(spec: str = "houlsby:size=4", finish: bool = False) -> inlay.Adapter:
    host = tiny.host()
    host.add("a", spec, labels=["no", "yes"])
    tiny.shake(host, "a")
    return host.adapter("a", finish)


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n: t for n, t in tensors.items() if n != name}


def test_an_adapter_of_another_base_is_refused_with_both_fingerprints():
    host, other = tiny.host(), tiny.host(seed=1)
    assert host.base.fingerprint != other.base.fingerprint
    parts = [host.base.fingerprint, other.base.fingerprint]
    assert_refused(AdapterError, parts, lambda: other.load(snapshot(), "a"))
    assert other.names == []


def test_the_pooler_matters_only_to_adapters_that_use_it():
    """Models for tagging and the like come without one."""
    full, bare, batch = tiny.host(), tiny.model("bert"), tiny.batch(3)
    bare.pooler = None
    host = inlay.Host(bare)
    for name in ("wide", "per layer", "low rank", "top"):
        case = CASES[name]
        full.add(name, case.spec, head=case.head, labels=case.labels, pool=case.pool)
        tiny.shake(full, name)
    with torch.no_grad():
        for name in ("wide", "per layer"):
            host.load(full.adapter(name), name)
            for x, y in zip(host.logits(batch, [name] * 3), full.logits(batch, [name] * 3), strict=True):
                assert torch.equal(x, y)
    for name in ("low rank", "top"):
        assert_refused(AdapterError, ["pooler"], lambda name=name: host.load(full.adapter(name), name))
    other = tiny.model("bert")
    with torch.no_grad():
        other.pooler.dense.weight += 1
    host = inlay.Host(other)
    host.load(full.adapter("wide"), "wide")
    for name in ("low rank", "top"):
        both = [full.adapter(name).base, host.base.identity(with_pooler=True)]
        assert_refused(AdapterError, both, lambda name=name: host.load(full.adapter(name), name))


DOWN = "layers.1.attn.out.down"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: without(t, DOWN), ["lacks", DOWN, "houlsby:size=4"]),
        (lambda t: without(t, "head.bias"), ["lacks", "head.bias"]),
        (lambda t: {**t, "layers.7.attn.out.down": torch.zeros(16, 4)}, ["layers.7.attn.out.down", "houlsby:size=4"]),
        (lambda t: {**t, DOWN: torch.zeros(16, 5)}, [DOWN, "(16, 5)", "(16, 4)"]),
        (lambda t: {**t, DOWN: t[DOWN].T}, [DOWN, "(4, 16)", "(16, 4)"]),
        (lambda t: {**t, "head.weight": torch.zeros(16, 3)}, ["head.weight", "(16, 3)", "(16, 2)"]),
    ],
    ids=["missing", "missing in the head", "too many", "wrong shape", "transposed", "wrong shape in the head"],
)
def test_a_tensor_that_does_not_fit_is_named(change, parts):
    host, good = tiny.host(), snapshot()
    bad = replace(good, tensors=change(good.tensors))
    assert_refused(AdapterError, parts, lambda: host.load(bad, "a"))
    assert host.names == []
    assert host.forward.bank.groups == {}
    host.load(good, "a")


INDEX, VALUE = "encoder.layer.0.output.dense.weight#index", "encoder.layer.0.output.dense.weight#value"


@pytest.mark.parametrize(
    "change",
    [
        lambda t: without(t, VALUE),
        lambda t: without(t, INDEX),
        lambda t: {**t, INDEX: torch.tensor([10**6], dtype=torch.int32), VALUE: torch.ones(1)},
        lambda t: {**t, INDEX: torch.tensor([-1], dtype=torch.int32), VALUE: torch.ones(1)},
        lambda t: {**t, INDEX: torch.tensor([1, 2], dtype=torch.int32), VALUE: torch.ones(3)},
    ],
    ids=["no values", "no positions", "a position outside", "a negative position", "too many values"],
)
def test_a_damaged_sparse_tensor_is_named(change):
    host, good = tiny.host(), snapshot("diffprune:target=0.1", finish=True)
    assert {INDEX, VALUE} <= good.tensors.keys()
    bad = replace(good, tensors=change(good.tensors))
    assert_refused(AdapterError, ["encoder.layer.0.output.dense.weight"], lambda: host.load(bad, "a"))
    assert host.names == []
    host.load(good, "a")


@pytest.mark.parametrize(
    ("change", "error", "parts"),
    [
        ({"method": "hulsby:size=4"}, SpecError, ["'hulsby'", "Did you mean houlsby?"]),
        ({"method": "houlsby:sise=4"}, SpecError, ["'sise'", "Did you mean size"]),
        ({"head": "linar"}, SpecError, ["'linar'", "Did you mean linear?"]),
        ({"pool": "men"}, SpecError, ["'men'", "Did you mean mean"]),
        ({"labels": ()}, AdapterError, ["head", "no labels"]),
        ({"labels": ("a", "b", "c")}, AdapterError, ["head.weight", "(16, 2)", "(16, 3)"]),
        ({"head": None, "labels": ()}, AdapterError, ["head."]),
    ],
)
def test_a_card_that_does_not_fit_is_refused(change, error, parts):
    host = tiny.host()
    assert_refused(error, parts, lambda: host.load(replace(snapshot(), **change), "a"))
    assert host.names == []


def test_a_snapshot_of_what_was_loaded_is_what_was_loaded():
    host = tiny.host()
    host.add("plain", "lora", seed=5)
    for adapter in (snapshot(), host.adapter("plain")):
        host.load(adapter, "again")
        again = host.adapter("again")
        assert replace(again, tensors={}, name="") == replace(adapter, tensors={}, name="")
        assert again.tensors.keys() == adapter.tensors.keys()
        assert all(torch.equal(again.tensors[n], t) for n, t in adapter.tensors.items())
        host.unload("again")


def test_an_adapter_knows_where_its_base_is(tmp_path, monkeypatch):
    tiny.save_text_model(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    host = inlay.Host("base")
    host.add("x", "bitfit", labels=2)
    assert host.adapter("x").base_name == str(tmp_path / "base")


def test_an_adapter_keeps_its_name_unless_it_is_given_another():
    host, adapter = tiny.host(), snapshot()
    assert adapter.name == "a"
    host.load(adapter)
    host.load(adapter, "b")
    assert host.names == ["a", "b"]
    assert [host.adapter(name).name for name in host.names] == ["a", "b"]
    assert_refused(SlotError, ["name"], lambda: host.load(replace(adapter, name="")))
    assert_refused(SlotError, ["name"], lambda: host.add("", "lora"))


@pytest.mark.parametrize("labels", ["yes", ["a", "a"], ["a", ""], [1, 2], True, None])
def test_labels_are_different_names_or_how_many(labels):
    host = tiny.host()
    assert_refused(SpecError, ["labels must"], lambda: host.add("a", "lora", labels=labels))
    assert host.names == []


# --- slots come and go --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES["wide"], CASES["low rank"], CASES["shared bias"], CASES["top"]])
def test_an_adapters_answers_do_not_change_by_one_bit_while_others_come_and_go(case):
    host, batch = tiny.host(), tiny.batch(6, seed=3)
    host.add("first", case.spec, head=case.head, labels=case.labels, pool=case.pool)
    tiny.shake(host, "first")

    def answers() -> list[Tensor]:
        with torch.no_grad():
            return host.logits(batch, ["first"] * 6)

    before, others = answers(), list(CASES.values())
    for i in range(30):
        other = others[i % len(others)]
        host.add(f"other {i}", other.spec, head=other.head, labels=other.labels, pool=other.pool, seed=i)
        tiny.shake(host, f"other {i}", seed=i)
    assert all(torch.equal(x, y) for x, y in zip(before, answers(), strict=True))
    for i in shuffled(list(range(30)))[:15]:
        host.unload(f"other {i}")
    assert len(host.names) == 16
    assert all(torch.equal(x, y) for x, y in zip(before, answers(), strict=True))
    with torch.no_grad():
        [survivor] = [name for name in host.names if name != "first"][:1]
        beside = host.logits(batch.take([0, 1, 2, 3, 4, 5, 0]), ["first"] * 6 + [survivor])[:6]
    for x, y in zip(before, beside, strict=True):
        tiny.assert_close(x, y)


def test_a_name_that_was_unloaded_is_free_again():
    host, batch = tiny.host(), tiny.batch(2)
    host.add("a", "houlsby:init=0.5", labels=2, seed=1)
    with torch.no_grad():
        first = host.logits(batch, ["a", "a"])
        host.unload("a")
        host.add("a", "houlsby:init=0.5", labels=2, seed=2)
        other = host.logits(batch, ["a", "a"])
        host.unload("a")
        host.add("a", "houlsby:init=0.5", labels=2, seed=1)
        again = host.logits(batch, ["a", "a"])
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(first, other, strict=True))


# --- a model given as an object -----------------------------------------------------------------------------


def state_of(model: Any) -> tuple[Any, ...]:
    return (
        {name: module.training for name, module in model.named_modules()},
        {name: p.requires_grad for name, p in model.named_parameters()},
        model.config._attn_implementation,
        model.dtype,
        [name for name, module in model.named_modules() if "forward" in vars(module)],
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_closing_gives_the_object_back_as_it_was(training, attention):
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(tiny.CONFIGS["bert"]).train(training)
    model.set_attn_implementation(attention)
    model.bert.embeddings.requires_grad_(False)
    before, weights = state_of(model), fingerprints(model)
    host = inlay.Host(model)
    host.add("a", "finetune", labels=2)
    host.add("b", "houlsby", labels=2)
    torch.stack(host.logits(tiny.batch(2), ["a", "b"], host.keys({"a": (0, 0), "b": (0, 0)}))).sum().backward()
    assert state_of(model) != before
    assert model.classifier.weight.requires_grad  # the model's own head is not part of the base
    host.close()
    assert state_of(model) == before
    assert fingerprints(model) == weights


def test_closing_restores_the_mode_of_every_module():
    model = tiny.model("bert").train()
    model.encoder.layer[0].eval()
    before = state_of(model)
    inlay.Host(model).close()
    assert state_of(model) == before


def test_closing_twice_is_harmless():
    model = tiny.model("bert").train()
    host = inlay.Host(model)
    host.close()
    model.eval()
    host.close()
    assert not model.training


def test_a_closed_host_answers_no_more():
    host, batch = tiny.host(), tiny.batch(3)
    host.add("a", "lora", labels=2)
    host.close()
    for call in (host.hidden, host.logits):
        assert_refused(InlayError, ["closed"], lambda call=call: call(batch, ["a"] * 3))


def test_two_hosts_do_not_share_a_model():
    """Closing the first would take the second's wiring out too."""
    model, batch = tiny.model("bert"), tiny.batch(3)
    first = inlay.Host(model)
    before = state_of(model)
    assert_refused(InlayError, ["close"], lambda: inlay.Host(model))
    assert state_of(model) == before
    first.close()
    second = inlay.Host(model)
    second.add("a", "houlsby:init=0.5")
    assert not torch.equal(second.hidden(batch, ["a"] * 3).states, second.hidden(batch, [None] * 3).states)


def test_a_model_with_an_adapter_attached_is_not_a_base():
    model = tiny.model("bert").train()
    attached = inlay.attach(model, "houlsby:init=0.5")
    before = state_of(model)
    assert_refused(InlayError, ["attached", "detach"], lambda: inlay.Host(model))
    assert state_of(model) == before  # it can still be trained
    attached.detach()
    inlay.Host(model)


def test_a_model_that_is_refused_is_left_as_it_was():
    config = transformers.CamembertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=60
    )
    model = transformers.CamembertModel(config).train()
    before = state_of(model)
    assert_refused(ArchError, ["'camembert'"], lambda: inlay.Host(model))
    assert state_of(model) == before


def test_an_object_is_not_converted():
    model = tiny.model("bert")
    before = state_of(model)
    assert_refused(BaseError, ["model.to("], lambda: inlay.Host(model, dtype=torch.bfloat16))
    assert state_of(model) == before
    inlay.Host(model, device="cpu", dtype=torch.float32)


def test_an_object_stays_where_it_is_and_what_it_is():
    model = tiny.model("bert").double()
    host, batch = inlay.Host(model), tiny.batch(3)
    assert (host.base.dtype, host.base.device) == (torch.float64, torch.device("cpu"))
    host.add("a", "houlsby:size=4,init=0.2", labels=2)
    states = host.hidden(batch, ["a", None, "a"]).states
    assert states.dtype == torch.float64
    states.sum().backward()
    assert {g.dtype for g in host.gradients("a").values() if g is not None} == {torch.float32}
    host.close()
    assert model.dtype == torch.float64


def test_names_and_folders_run_in_fp32_on_the_cpu(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tiny.model("bert").half().save_pretrained(tmp_path / "base")
    base = inlay.Host(tmp_path / "base").base
    assert (base.dtype, base.device) == (torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("config", ['{"pooling_mode_max_tokens": true}', "{", "3"])
def test_a_pooling_that_is_not_known_is_not_guessed(tmp_path, config):
    tiny.model("bert").save_pretrained(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(config)
    host = inlay.Host(tmp_path, device="cpu")
    assert_refused(SpecError, ["1_Pooling", "choose"], lambda: host.add("a", "lora", labels=2))
    host.add("a", "lora", labels=2, pool="mean")


def test_a_base_that_was_given_back_serves_another_host():
    first = tiny.host("bert")
    batch = tiny.batch(4)
    expected = first.hidden(batch, [None] * 4).states
    first.close()
    assert torch.equal(inlay.Host(first.base).hidden(batch, [None] * 4).states, expected)
