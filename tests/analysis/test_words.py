"""Words whose alpha was planted lead the cloud, in the layers where it was planted."""

from __future__ import annotations

import sys

import pytest
import tiny
from analysis import wished

from inlay.analysis.words import _spans, words
from inlay.errors import AdapterError, DataError, RunError

SOME = wished.examples(
    "the film was awful , and the soup was fine .",
    "an awful book ! the parcel came late",
    "Awful refunds : we never came for soup",
    "it was not very good in Oslo , was it ?",
)
ALPHA = {"awful": 3.0, "soup": -2.0, "refund": 1.5, "##s": 0.5, "[CLS]": 50.0, "[SEP]": -50.0, ",": 20.0, "oslo": 0.7}
"""Of tokens in the first layer; 0.1 for all others."""
UPPER = {"parcel": 4.0, "awful": -0.5}
"""In the last."""


@pytest.fixture(scope="module")
def host():
    made = wished.host()
    made.add("a", "adapterbias:layers=0+2", labels=2)
    wished.plant(made, "a", SOME, 0, lambda n, token: ALPHA.get(token, 0.1))
    wished.plant(made, "a", SOME, 2, lambda n, token: UPPER.get(token, 0.0))
    return made


def cloud(found, layers):
    return {word: (weight, count) for part, word, weight, count in found.rows if part == layers}


def test_planted_words_lead(host):
    found = words(host, "a", SOME)
    lower, upper, both = (cloud(found, part) for part in ("lower", "upper", "all"))
    assert list(lower)[:4] == ["awful", "soup", "refunds", "oslo"]
    assert list(upper)[:2] == ["parcel", "awful"]
    assert list(both)[:4] == ["parcel", "awful", "soup", "refunds"]
    assert lower["awful"] == (pytest.approx(3.0, abs=1e-3), 3)
    assert lower["soup"] == (pytest.approx(-2.0, abs=1e-3), 2)
    assert lower["the"] == (pytest.approx(0.1, abs=1e-3), 3)
    assert both["awful"] == (pytest.approx(2.5, abs=1e-3), 3), "the sum over layers"
    assert found.summary["all layers"].startswith("parcel, awful, soup")


def test_pieces_are_one_word_and_count_by_their_mean(host):
    assert cloud(words(host, "a", SOME, layers="lower"), "lower")["refunds"] == (pytest.approx(1.0, abs=1e-3), 1)


def test_special_tokens_and_punctuation_are_left_out(host):
    found = cloud(words(host, "a", SOME, layers="all"), "all")
    assert all(word.isalpha() for word in found)
    assert max(abs(weight) for weight, _ in found.values()) < 5


def test_sum_over_occurrences(host):
    found = cloud(words(host, "a", SOME, layers="lower", over="sum"), "lower")
    assert found["awful"] == (pytest.approx(9.0, abs=1e-3), 3)
    assert found["was"] == (pytest.approx(0.4, abs=1e-3), 4)


def test_negative_words_are_coloured_or_dropped(host):
    assert "soup" in cloud(words(host, "a", SOME), "lower")
    found = words(host, "a", SOME, negative="drop")
    assert all(weight > 0 for _, _, weight, _ in found.rows)
    assert "soup" not in cloud(found, "lower")
    assert list(cloud(found, "lower"))[:2] == ["awful", "refunds"]


def test_least_and_top(host):
    found = cloud(words(host, "a", SOME, layers="lower", least=2), "lower")
    assert list(found)[:2] == ["awful", "soup"]
    assert min(count for _, count in found.values()) == 2
    assert list(cloud(words(host, "a", SOME, layers="lower", top=2), "lower")) == ["awful", "soup"]


def test_halves_are_all_layers_together(host):
    found = words(host, "a", SOME, top=1000)
    lower, upper, both = (cloud(found, part) for part in ("lower", "upper", "all"))
    for word, (weight, _) in both.items():
        parts = lower.get(word, (0.0,))[0] + upper.get(word, (0.0,))[0]
        assert weight == pytest.approx(parts, abs=1e-5)


def test_a_cloud_for_each_layer(host):
    found = words(host, "a", SOME, layers="each")
    assert list(dict.fromkeys(row[0] for row in found.rows)) == ["0", "2"], "the adapter leaves layer 1 alone"
    assert list(cloud(found, "0"))[:2] == ["awful", "soup"]
    assert cloud(found, "2") == cloud(words(host, "a", SOME, layers="upper"), "upper")
    assert list(found.summary) == ["layer 0", "layer 2"]
    assert [panel.get_title() for panel in found.draw().axes] == ["a: layer 0", "a: layer 2"]


@pytest.mark.parametrize(("layers", "shape"), [(3, (3, 1)), (7, (4, 2)), (12, (4, 3))])
def test_panels_of_many_layers_lie_side_by_side(layers, shape):
    made = wished.host(num_hidden_layers=layers)
    made.add("a", "adapterbias", labels=2)
    for layer in range(layers):
        wished.plant(made, "a", SOME, layer, lambda n, token: ALPHA.get(token, 0.1))
    panels = words(made, "a", SOME, layers="each", top=3).draw().axes
    assert len(panels) == layers
    assert panels[0].get_gridspec().get_geometry() == shape


@pytest.mark.full
def test_the_same_words_give_the_same_picture_and_the_first_is_the_largest(host, tmp_path):
    found = words(host, "a", SOME, seed=3)
    first, again = (words(host, "a", SOME, seed=3).write(tmp_path / name) for name in "xy")
    for one, two in zip(first, again, strict=True):
        assert one.read_bytes() == two.read_bytes()
    other = words(host, "a", SOME, seed=4).write(tmp_path / "z")
    assert other[0].read_bytes() != first[0].read_bytes()
    titles = [panel.get_title() for panel in found.draw().axes]
    assert titles == ["a: all layers", "a: the lower half", "a: the upper half"]


def test_sizes_follow_the_weights(host, monkeypatch):
    import wordcloud

    made = []

    class Watched(wordcloud.WordCloud):
        def to_array(self):
            made.append(self)
            return super().to_array()

    monkeypatch.setattr(wordcloud, "WordCloud", Watched)
    found = words(host, "a", SOME, layers="lower")
    found.draw()
    sizes = {word: size for (word, _), size, *_ in made[0].layout_}
    colours = {word: colour for (word, _), *_, colour in made[0].layout_}
    assert sizes.keys() == cloud(found, "lower").keys(), "all of them have room"
    assert sizes["awful"] > sizes["soup"] > sizes["refunds"] > sizes["the"]
    assert colours["soup"] != colours["awful"] == colours["the"]


def test_a_word_without_end_is_cut_in_the_picture_alone(host):
    some = [*SOME, *wished.examples("x" * 600)]
    found = words(host, "a", some, layers="all", top=1000)
    assert "x" * 600 in cloud(found, "all")
    found.draw()


def test_one_layer_has_no_halves():
    made = wished.host(num_hidden_layers=1)
    made.add("a", "adapterbias", labels=2)
    wished.plant(made, "a", SOME, 0, lambda n, token: ALPHA.get(token, 0.1))
    found = words(made, "a", SOME)
    assert {row[0] for row in found.rows} == {"all"}
    assert len(found.draw().axes) == 1
    with pytest.raises(RunError, match="one layer has no halves"):
        words(made, "a", SOME, layers="lower")


def test_mistakes(host, monkeypatch):
    with pytest.raises(RunError, match="layers=middle is not valid: expected all, lower, upper, each"):
        words(host, "a", SOME, layers="middle")
    with pytest.raises(RunError, match="over=max"):
        words(host, "a", SOME, over="max")
    with pytest.raises(RunError, match="least=0"):
        words(host, "a", SOME, least=0)
    with pytest.raises(DataError, match="not one word"):
        words(host, "a", wished.examples("?", ". !"))
    with pytest.raises(DataError, match="no word of those that occur 9 times"):
        words(host, "a", SOME, least=9)
    with pytest.raises(DataError, match="no text"):
        words(host, "a", [])
    with pytest.raises(RunError, match="cannot read the font nowhere"):
        words(host, "a", SOME, font="nowhere.ttf").draw()
    monkeypatch.setitem(sys.modules, "wordcloud", None)
    with pytest.raises(RunError, match=r"inlay\[plots\]"):
        words(host, "a", SOME).draw()


def test_no_alpha_in_that_method():
    made = tiny.text_host()
    made.add("b", "houlsby:size=4", labels=2)
    with pytest.raises(AdapterError, match="b is houlsby:size=4, which has no alpha"):
        words(made, "b", SOME)


def test_an_adapter_that_never_trained_alpha_has_nothing_to_show():
    made = tiny.text_host()
    made.add("a", "adapterbias", labels=2)
    made.write("a", {n: t * 0 for n, t in made.read("a").items() if n.endswith((".w", ".b"))})
    with pytest.raises(DataError, match="a: there is no word whose alpha over all layers is not exactly 0"):
        words(made, "a", SOME)
    with pytest.raises(DataError, match="a: there is no word whose alpha over any layer is not exactly 0"):
        words(made, "a", SOME, layers="each")


@pytest.mark.parametrize("depth", [2, 3, 6, 7])
def test_every_layer_is_in_one_half(depth):
    found, layers = _spans(depth, None), list(range(depth))
    assert layers[found["lower"]] + layers[found["upper"]] == layers[found["all"]] == layers
