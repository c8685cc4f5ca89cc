"""What a grid means, and that everything wrong with one is said at once."""

from __future__ import annotations

from typing import Any

import pytest
from training import work

import inlay
from inlay.errors import RunError
from inlay.sweeps.grid import Space, read_grid
from inlay.sweeps.random_search import draw, largest
from inlay.sweeps.values import Range, in_words, read_texts, shown, split_specs


def space(*texts: str, ranges: bool = False, **given: Any) -> Space:
    grid, problems = read_texts(texts)
    made, more = read_grid(given, grid, ranges)
    assert problems + more == []
    return made


def problems(*texts: str, ranges: bool = False, **given: Any) -> list[str]:
    grid, found = read_texts(texts)
    return found + read_grid(given, grid, ranges)[1]


# --- combinations -------------------------------------------------------------------------------------------------


def test_a_product_in_order():
    made = space("lr=3e-4,1e-3", "batch-size=8,16")
    assert [(s["lr"], s["batch_size"]) for s in made.settings()] == [(3e-4, 8), (3e-4, 16), (1e-3, 8), (1e-3, 16)]
    assert made.keys == ["lr", "batch_size"]
    assert made.size == 4
    runs = [made.run(s, seed=3) for s in made.settings()]
    assert [(r.lr, r.batch_size, r.seed, r.method) for r in runs][1] == (3e-4, 16, 3, "houlsby")


def test_the_papers_protocol_is_18_settings():
    made = space("lr=3e-5,3e-4,3e-3", "epochs=3,20", "size=8,64,256")
    assert made.size == 18
    assert len({made.run(s).model_dump_json() for s in made.settings()}) == 18


def test_an_option_multiplies_only_methods_that_have_it():
    made = space("method=houlsby,lora:rank=2,adapterbias", "size=8,16", "lr=1e-3")
    found = [(made.run(s).method, s.get("size")) for s in made.settings()]
    assert found == [("houlsby:size=8", 8), ("houlsby:size=16", 16), ("lora:rank=2", None), ("adapterbias", None)]
    assert made.keys == ["method", "size"]


def test_an_option_of_two_methods_has_the_type_of_each():
    made = space("method=diffprune,adapterbias", "l0=1e-3,0.1")
    assert [made.run(s).method for s in made.settings()] == [
        "diffprune:l0=0.001",
        "diffprune:l0=0.1",
        "adapterbias:l0=0.001",
        "adapterbias:l0=0.1",
    ]
    assert any(
        "alpha=8 is not valid: expected true or false" in p for p in problems("method=lora,adapterbias", "alpha=8")
    )


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("houlsby:size=8,init=0.1,adapterbias", ["houlsby:size=8,init=0.1", "adapterbias"]),
        ("houlsby,size=8,norms", ["houlsby:size=8", "norms"]),
        ("houlsby:size=8,houlsby:size=64,adapterbias", ["houlsby:size=8", "houlsby:size=64", "adapterbias"]),
        (" lora : rank=2 , norms", ["lora : rank=2", "norms"]),
        (["houlsby:size=8,init=0.1", "norms"], ["houlsby:size=8,init=0.1", "norms"]),
    ],
)
def test_lists_of_specs(text: Any, specs: list[str]):
    found: list[str] = []
    assert split_specs(text, found) == specs
    assert found == []


def test_specs_stay_as_they_were_written():
    made = space("method=houlsby:size=8,houlsby:size=64")
    assert [s["method"] for s in made.settings()] == ["houlsby:size=8", "houlsby:size=64"]


def test_values_have_types():
    made = space("patience=none,3", "dropout=true,false", "clip=auto,0.5", "decay=difference", "norms=auto,true")
    first, *_, last = made.settings()
    assert (first["patience"], first["dropout"], first["clip"], first["norms"]) == (None, True, None, None)
    assert (last["patience"], last["dropout"], last["clip"], last["norms"]) == (3, False, 0.5, True)


def test_what_is_left_out_is_shown_as_it_is_written():
    first, *_ = space("patience=none,3", "teacher=none,one", "norms=auto,true").settings()
    assert in_words(first, list(first)[1:]) == "patience=none teacher=none norms=auto"


def test_lists_of_python_mean_the_same():
    texts = space("method=houlsby,adapterbias", "lr=0.0003,1e-3", "size=8,64", "dropout=true,false")
    lists = {"method": ["houlsby", "adapterbias"], "lr": [3e-4, 1e-3], "size": [8, 64], "dropout": [True, False]}
    made, found = read_grid({}, lists)
    assert found == []
    assert list(made.settings()) == list(texts.settings())
    single, found = read_grid({}, {"lr": 1e-3, "epochs": (1, 2)})
    assert [s["epochs"] for s in single.settings()] == [1, 2]


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["sizes=8"], "no setting or option 'sizes' to vary. Did you mean size"),
        (["lrr=1"], "Did you mean lr"),
        (["rank=2"], "rank is an option of lora, and no method here has it"),
        (["lr="], "lr has no values"),
        (["lr=1e-3,,1e-4"], "lr has an empty value"),
        (["method="], "method has no values"),
        (["lr"], "--grid 'lr' is not key=a,b,c"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=0"], "lr='0' is not valid: expected greater than 0"),
        (["epochs=2.5"], "epochs='2.5' is not valid"),
        (["lr=1e-3,0.001"], "lr has 0.001 twice"),
        (["size=0"], "houlsby: size=0 is not valid: expected 1 or more"),
        (["size=big"], "houlsby: size=big is not valid: expected a whole number"),
        (["method=houlsbi:size=4"], "unknown method 'houlsbi'. Did you mean houlsby"),
        (["method=houlsby,houlsby:size=64"], "method has houlsby twice"),
        (["method=houlsby:size=8", "size=8,16"], "size is both in houlsby:size=8 and in the grid"),
        (["data=a.csv,b.csv"], "data cannot vary"),
        (["metric=f1,accuracy"], "metric cannot vary"),
        (["seed=0,1"], "--seeds"),
        (["lr=1e-4..1e-2"], "lr has a range, which needs random draws or a search"),
        (
            ["lr=" + ",".join(map(str, range(1, 200))), "epochs=" + ",".join(map(str, range(1, 100)))],
            "19,701 combinations",
        ),
    ],
)
def test_a_mistake_is_named(texts: list[str], said: str):
    found = problems(*texts)
    assert len(found) == 1, found
    assert said in found[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr=1e-2..1e-4", "is an empty range"),
        ("lr=1e-4..", "is not a range: expected low..high"),
        ("lr=1e-4..1e-2,1", "lr mixes a range and single values"),
        ("head=linear..mlp", "head is not a number"),
        ("lr=0..1", "lr='0' is not valid"),
    ],
)
def test_a_range_that_is_none(text: str, said: str):
    found = problems(text, ranges=True)
    assert any(said in one for one in found), found


def test_a_setting_is_fixed_or_varies():
    assert problems("lr=1,2", lr=1e-3) == ["lr is both set to 0.001 and in the grid"]


def test_everything_is_said_together_before_anything_starts():
    events: list[Any] = []
    grid = {
        "sise": [4],
        "lr": [],
        "size": [0, 4],
        "epochs": ["x"],
        "layers": ["top9"],
        "head": ["lineer"],
        "data": ["x"],
    }
    with pytest.raises(RunError) as error:
        inlay.sweep(work.host(), inlay.Run(data=work.texts()), grid, seeds=0, select="worst", callbacks=[events.append])
    said = str(error.value)
    for part in ("sise", "size=0", "'x'", "head", "data cannot vary", "seeds=0", "select=worst"):
        assert part in said, part
    assert "lr" in said
    assert events == []


def test_what_a_base_cannot_have_is_said_with_the_rest():
    with pytest.raises(RunError) as error:
        inlay.sweep(
            work.host(), inlay.Run(data=work.texts()), {"layers": ["all", "top9"], "head": ["lineer"], "x": [1]}
        )
    for part in ("top9", "lineer", "'x'"):
        assert part in str(error.value), part


# --- random draws -------------------------------------------------------------------------------------------------


def test_draws_are_distinct_seeded_and_grow():
    made = space("lr=1e-4..1e-2", "size=4..8", "method=houlsby,adapterbias", "epochs=1..40", ranges=True)
    first = draw(made, 50, 0)
    assert len({str(s) for s in first}) == 50
    assert draw(made, 50, 0) == first
    assert draw(made, 20, 0) == first[:20]
    assert draw(made, 50, 1) != first
    assert all(1e-4 <= s["lr"] <= 1e-2 for s in first)
    sizes = {s["size"] for s in first if s["method"] == "houlsby"}
    assert sizes == {4, 5, 6, 7, 8}
    assert all(isinstance(size, int) for size in sizes)
    assert all("size" not in s for s in first if s["method"] == "adapterbias")
    assert all(isinstance(s["epochs"], int) and 1 <= s["epochs"] <= 40 for s in first)


def test_wide_ranges_are_drawn_by_their_logarithm():
    import random

    source = random.Random(0)
    wide, narrow = Range(1e-4, 1e-2, False), Range(1.0, 2.0, False)
    assert wide.log
    assert not narrow.log
    below = sum(wide.draw(source) < 1e-3 for _ in range(2000)) / 2000
    assert 0.45 < below < 0.55  # uniformly it would be 0.09
    below = sum(narrow.draw(source) < 1.5 for _ in range(2000)) / 2000
    assert 0.45 < below < 0.55
    drawn = wide.draw(source)
    assert float(shown(drawn)) == drawn


def test_finite_draws_without_repetition():
    made = space("lr=1,2,3", "epochs=1,2")
    assert sorted(map(str, draw(made, 6, 0))) == sorted(map(str, made.settings()))
    with pytest.raises(RunError, match="7 different combinations were requested, but there are only 6"):
        draw(made, 7, 0)
    with pytest.raises(RunError, match="only 3"):
        draw(space("epochs=1..3", ranges=True), 4, 0)


def test_the_largest_setting_of_every_method():
    made = space("method=houlsby,norms", "size=4..8", "batch_size=32,8", "dropout=false,true", ranges=True)
    assert largest(made) == [
        {"method": "houlsby", "size": 8, "batch_size": 32, "dropout": False},
        {"method": "norms", "batch_size": 32, "dropout": False},
    ]
