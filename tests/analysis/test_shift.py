"""The plane of largest variance, against a planted direction and scikit-learn; states, against a plain model."""

from __future__ import annotations

import pytest
import tiny
import torch
from analysis import wished
from sklearn.decomposition import PCA

import inlay
from inlay.analysis.norm_outputs import norm_outputs
from inlay.analysis.pca import pca
from inlay.analysis.shift import BARE, shift
from inlay.errors import ArchError, DataError, RunError, SlotError

LABELS = ["good", "bad"]
TEXTS = ("the film was good", "awful soup", "a fine book", "it is late and never came", "love it")
SOME = wished.examples(*TEXTS, labels=["good", "bad", "good", "bad", "good"])
NORMS = ("attn.norm", "ffn.norm")


def direction(seed=0, d=16):
    made = torch.randn(d, generator=torch.Generator().manual_seed(seed))
    return made / made.norm()


def host(*specs, name="bert", **changes):
    made = tiny.text_host(name, **changes)
    for seed, spec in enumerate(specs):
        made.add(spec, spec, labels=LABELS)
        tiny.shake(made, spec, seed=seed)
    return made


def oracle(made, name, arch, batch):
    """(before, after) of every row, from a plain model; for adapters of norms and biases alone, which it can have."""
    model = tiny.model(arch, vocab_size=len(made.base.tokenizer), max_position_embeddings=64)
    sites, tensors = made.base.sites, {} if name is None else made.read(name)
    with torch.no_grad():
        for site in sites:
            leaf = model.get_submodule(site.path)
            for key, own in (("gamma", "weight"), ("beta", "bias"), ("bias", "bias")):
                if f"{site.name}.{key}" in tensors:
                    getattr(leaf, own).add_(tensors[f"{site.name}.{key}"])
    heard = {}
    for kind in NORMS:
        leaf = model.get_submodule(sites.at(kind, sites.layers - 1).path)
        leaf.register_forward_hook(lambda m, args, out, kind=kind: heard.__setitem__(kind, out[0]))
    found = []
    for ids in tiny.rows_of(batch):
        with torch.no_grad():
            model(input_ids=ids[None])
        found.append(tuple(heard[kind] for kind in NORMS))
    return found


def test_a_planted_direction_is_found():
    u = direction()
    random = torch.Generator().manual_seed(1)
    points = torch.randn(200, 1, generator=random) * 5 * u + torch.randn(200, 16, generator=random) * 0.01 + 3
    found = pca(points)
    assert (found.directions[0].float() @ u).abs() > 0.9999
    assert found.shares[0] > 0.99
    assert found.directions[0].abs().max() == found.directions[0].max(), "the largest number is positive"


def test_equal_to_scikit_learn():
    points = torch.randn(40, 16, generator=torch.Generator().manual_seed(2)) * torch.arange(1, 17)
    found, known = pca(points), PCA(2).fit(points.numpy())
    assert found.shares == pytest.approx(known.explained_variance_ratio_.tolist(), rel=1e-4)
    theirs = torch.tensor(known.transform(points.numpy()))
    for i in (0, 1):
        sign = torch.sign(theirs[0, i] * found.points[0, i])
        torch.testing.assert_close(found.points[:, i], theirs[:, i].double() * sign, rtol=1e-3, atol=1e-3)


def test_points_in_one_place_have_no_plane():
    with pytest.raises(DataError, match="in one place"):
        pca(torch.ones(5, 16))


@pytest.mark.parametrize("arch", ["bert", "roberta", "distilbert", "mpnet", "deberta-v2", "albert"])
def test_states_are_those_of_a_plain_model(arch):
    made = host("bitfit", "norms", name=arch)
    batch = tiny.batch(6)
    names = ["norms", None, "bitfit", "bitfit", None, "norms"]
    found = norm_outputs(made, batch, names)
    for i, name in enumerate(names):
        ((before, after),) = oracle(made, name, arch, batch.take([i]))
        tiny.assert_close(found[i][0], before, f"{name} before")
        tiny.assert_close(found[i][1], after, f"{name} after")


def test_after_is_the_last_hidden_state_whatever_the_method():
    specs = ["adapterbias", "houlsby:size=4", "finetune", "lora:rank=2", "adapterbias:l0=0.1"]
    made = host(*specs)
    batch = tiny.batch(len(specs))
    for (_, after), last in zip(norm_outputs(made, batch, specs), made.hidden(batch, specs).rows(), strict=True):
        tiny.assert_close(after, last)


def test_looking_changes_nothing():
    made, batch = host("bitfit"), tiny.batch(3)
    before = [row.clone() for row in made.hidden(batch, ["bitfit"] * 3).rows()]
    norm_outputs(made, batch, ["bitfit"] * 3)
    assert all(torch.equal(a, b) for a, b in zip(before, made.hidden(batch, ["bitfit"] * 3).rows(), strict=True))
    norm = made.base.sites.at("ffn.norm", 2)
    assert not made.base.model.get_submodule(norm.path)._forward_hooks


def moves(found, name):
    """{(text, token number): after - before} in the plane."""
    out = {}
    for i in range(0, len(found.rows), 2):
        before, after = found.rows[i : i + 2]
        assert (before[:4], before[4], after[4]) == (after[:4], "before", "after")
        if before[0] == name:
            out.setdefault(before[3], []).append((after[5] - before[5], after[6] - before[6]))
    return out


def test_one_large_bias_moves_all_tokens_one_way():
    made = host()
    made.add("b", "bitfit", labels=LABELS)
    made.write("b", {"layers.2.ffn.norm.bias": 300 * direction()})
    found = shift(made, ["b"], SOME, rows=5)
    assert found.summary["b: agreement of directions"] > 0.999
    assert found.summary["b: cosine between labels"] > 0.999
    lengths = [abs(x) for own in moves(found, "b").values() for x, _ in own]
    assert lengths == pytest.approx([300] * len(lengths), abs=15), "the first component is the planted direction"
    assert "(100 % of variance)" in found.draw().axes[0].get_xlabel()


def test_alpha_that_knows_the_label_moves_tokens_apart():
    made = wished.host()
    made.add("a", "adapterbias:layers=2", labels=LABELS)
    wished.plant(made, "a", SOME, 2, lambda n, token: 1.0 if SOME[n].target == "good" else -1.0)
    made.write("a", {"layers.2.ffn.out.v": 500 * direction(), "layers.2.ffn.norm.gamma": torch.full((16,), 50.0)})
    found = shift(made, ["a"], SOME, rows=5, bare=True)
    assert found.summary["a: cosine between labels"] < -0.9
    assert found.summary["a: agreement of directions"] < 0.5
    signs = {label: {x > 0 for x, _ in own} for label, own in moves(found, "a").items()}
    assert sorted(map(sorted, signs.values())) == [[False], [True]], "each label goes its own way"
    assert found.summary[f"{BARE}: cosine between labels"] > -0.9
    assert found.summary["a: mean alpha, label good"] == pytest.approx(1.0, abs=1e-3)
    assert found.summary["a: mean alpha, label bad"] == pytest.approx(-1.0, abs=1e-3)
    assert not [key for key in found.summary if key.startswith(f"{BARE}: mean")]


def test_table_and_picture():
    made = host("adapterbias", "bitfit")
    found = shift(made, ["adapterbias", "bitfit"], SOME, rows=4, seed=1, bare=True)
    assert found.columns == ("adapter", "text", "token", "label", "when", "pc1", "pc2")
    assert list(dict.fromkeys(row[0] for row in found.rows)) == ["adapterbias", "bitfit", BARE]
    own = [row for row in found.rows if row[0] == "bitfit"]
    assert [label for _, label in sorted({(row[1], row[3]) for row in own})] == ["bad", "good"] * 2, "in turn"
    assert not {row[2] for row in own} & {"[CLS]", "[SEP]"}
    together = torch.tensor([row[5:] for row in own])
    assert together.mean(0).abs().max() < 1e-4, "both are centred together"
    figure = found.draw()
    assert [panel.get_title() for panel in figure.axes if panel.get_visible()] == ["adapterbias", "bitfit", BARE]
    (legend,) = figure.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert said == ["bad, before", "bad, after", "good, before", "good, after"]


def test_the_seed_draws_the_texts():
    made = host("bitfit")
    drawn = [{row[2] for row in shift(made, ["bitfit"], SOME, rows=2, seed=seed).rows} for seed in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert any(one != drawn[0] for one in drawn)


def test_a_model_of_one_layer():
    made = host("bitfit", num_hidden_layers=1)
    assert shift(made, ["bitfit"], SOME).rows


def test_mistakes():
    made = host("bitfit")
    made.add("tags", "bitfit", labels=LABELS, task="tagging")
    one = wished.examples("good", "fine", labels=["good"] * 2)
    with pytest.raises(DataError, match="every text that bitfit was shown has the label good; shift compares labels"):
        shift(made, ["bitfit"], one)
    with pytest.raises(DataError, match="has no label"):
        shift(made, ["bitfit"], wished.examples("good"))
    with pytest.raises(DataError, match="tags is for tagging"):
        shift(made, ["tags"], SOME)
    with pytest.raises(RunError, match="rows=1 is not valid: expected one text for each of the 2 labels"):
        shift(made, ["bitfit"], SOME, rows=1)
    with pytest.raises(DataError, match="have 2 tokens without special ones; a plane needs at least 3"):
        shift(made, ["bitfit"], wished.examples("good", "bad", labels=LABELS))
    with pytest.raises(SlotError, match="no adapter named 'x'"):
        shift(made, ["bitfit", "x"], SOME)
    with pytest.raises(RunError, match="needs at least one adapter"):
        shift(made, [], SOME)


def test_a_norm_before_the_sublayer_is_not_after_the_shift():
    made: inlay.Host = host("adapterbias", name="modernbert")
    with pytest.raises(ArchError, match="modernbert normalises before its sublayers"):
        shift(made, ["adapterbias"], SOME)
