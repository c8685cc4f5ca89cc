"""Reports on adapters of every task: they say what `eval` and the card say, and load nothing from outside."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from training import work

import inlay
from inlay.analysis.report.compare import Subject, compare
from inlay.analysis.report.layers import changes
from inlay.analysis.report.mistakes import mistakes
from inlay.analysis.report.predictions import predict
from inlay.analysis.report.report import Report, Rows, report
from inlay.engine.evaluate import measure
from inlay.errors import RunError
from inlay.library import card_text
from inlay.library.library import Library
from inlay.tasks import Example

pytest.importorskip("matplotlib")
EVIL = "<script>alert(1)</script> good <img src=x onerror=alert(2)>"
QA = [
    {
        "question": f"who came {i}",
        "context": f"it was late and ana {i} came",
        "answers": {"text": ["ana"], "answer_start": [16]},
    }
    for i in range(12)
]
DATA: dict[str, Any] = {
    "classification": (work.texts(24), "adapterbias"),
    "multilabel": (work.topics(24), "houlsby:size=4"),
    "regression": (work.ratings(24), "lora:rank=2"),
    "tagging": (work.entities(24), "finetune:top=1"),
    "qa": (QA, "norms"),
    "mlm": (work.texts(24), "bitfit"),
}


class World:
    """Adapters of every task on one host, in a library."""

    def __init__(self, root: Path):
        self.host = work.host()
        self.library = Library(root)
        self.rows: dict[str, list[Example]] = {}
        for task, (rows, method) in DATA.items():
            run = work.run(rows, method, task=task, epochs=3, eval_every=2, val_size=6)
            inlay.train(self.host, run, name=task, library=self.library)
            from inlay.runs.prepare import prepare

            self.rows[task] = prepare(run, self.host).validation.examples

    def report(self, name: str, rows: Rows | None = None, **more: Any) -> Report:
        adapter, entry = self.library.get(name), self.library.find(name)
        return report(self.host, name, adapter, entry, rows, **more)

    def subject(self, name: str) -> Subject:
        return Subject(self.host, name, self.library.find(name))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("reports"))


class Parsed(HTMLParser):
    """Which elements a page has, and what it would load."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for key, value in attrs:
            assert not key.startswith("on"), key
            if key in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.loads.append(str(value))
            if key == "id":
                self.ids.append(str(value))
        if tag not in ("meta", "link", "img", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> Parsed:
    found = Parsed(html)
    assert found.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert all(one.startswith("#") for one in found.loads)  # to a place in the page, or a shape of a picture
    links = {one for one in found.loads if f"href='{one}'" in html}
    assert {one.removeprefix("#") for one in links} <= set(found.ids)
    assert not re.search(r"url\((?!#)|@import", html)
    return found


@pytest.mark.thin(2)
@pytest.mark.parametrize("task", DATA)
def test_a_page_for_every_task(world: World, task: str):
    rows = Rows("some rows", world.rows[task])
    made = world.report(task, rows)
    check(made.html)
    assert made.html.count("<svg") >= 2
    assert f"* {card_text.scored(world.library.find(task).card)}." in made.html  # as `library show` says it
    expected, _ = measure(world.host, task, rows.examples)
    assert made.numbers["metrics"] == expected
    assert made.numbers["metrics"] == pytest.approx(world.library.find(task).card["metrics"]["validation"], rel=1e-5)
    for value in expected.values():
        assert f"{value:.4f}" in made.html
    assert (made.numbers["alpha"] is not None) == (task == "classification")
    sections = re.findall(r"<section id='(\w+)'", made.html)
    own = {
        "classification": ["confusion", "mistakes", "calibration"],
        "multilabel": ["labels", "mistakes", "calibration"],
        "regression": ["scatter", "mistakes"],
        "tagging": ["tags", "mistakes", "calibration"],
        "qa": ["mistakes", "calibration"],
        "mlm": [],
    }[task]
    assert sections == ["card", "metrics", "training", *own, "layers", "use"]
    assert ("curl" in made.html) == (task != "mlm")


def test_without_rows_a_sentence_says_why(world: World, tmp_path: Path):
    made = world.report("classification", None, why="the file <x> is gone")
    check(made.html)
    assert "the file &lt;x&gt; is gone" in made.html
    assert "id='confusion'" not in made.html
    assert made.numbers["metrics"] is None
    assert made.write(tmp_path / "new" / "r.html").read_text() == made.html
    with pytest.raises(RunError, match="cannot write"):
        made.write(tmp_path)


def test_texts_and_labels_are_shown_as_text(world: World):
    examples = [Example(EVIL, None, (), label, "", "<b>:1") for label in ("pos", "neg", "<i>new</i>")]
    made = world.report("classification", Rows("<u>rows</u>", examples))
    check(made.html)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; good" in made.html
    assert "&lt;i&gt;new&lt;/i&gt;" in made.html
    assert "1 of their labels" in made.html
    pair = compare(world.subject("classification"), world.subject("classification"), Rows("<u>", examples))
    check(pair.html)


def test_the_surest_mistakes_come_first(world: World):
    wrong = [replace(e, target="pos" if e.target == "neg" else "neg") for e in world.rows["classification"]]
    asked = predict(world.host, "classification", [*world.rows["classification"], *wrong])
    found = mistakes(asked)
    assert len(found) == len(wrong)  # either the row or its opposite is wrong
    assert [one.sure for one in found] == sorted((one.sure for one in found), reverse=True)
    assert all(one.said != one.right for one in found)
    numbers = mistakes(predict(world.host, "regression", world.rows["regression"]))
    assert [one.off for one in numbers] == sorted((one.off for one in numbers), reverse=True)


def test_decisions_are_those_of_the_answers(world: World):
    asked = predict(world.host, "classification", world.rows["classification"])
    assert [sure for sure, _ in asked.decisions] == [a["score"] for a in asked.answers]
    assert sum(right for _, right in asked.decisions) / len(asked.examples) == asked.metrics["accuracy"]
    plain = world.host.predict([("classification", e) for e in asked.examples], raw=True)
    assert [sure for sure, _ in asked.raw] == pytest.approx([a["score"] for a in plain])
    words = predict(world.host, "tagging", world.rows["tagging"])
    assert sum(right for _, right in words.decisions) / len(words.decisions) == pytest.approx(words.metrics["accuracy"])
    labels = predict(world.host, "multilabel", world.rows["multilabel"])
    assert len(labels.decisions) == len(labels.examples) * len(labels.labels)


def test_norms_of_what_was_learned(world: World):
    host = world.host
    host.add("fresh", "houlsby:size=4", labels=["a", "b"], seed=3)
    try:
        assert set(changes(host, "fresh", host.adapter("fresh")).values()) == {0.0}
        tensors = host.read("fresh")
        tensors["layers.1.attn.out.up"] = tensors["layers.1.attn.out.up"] + 3.0
        tensors["layers.2.ffn.norm.beta"] = tensors["layers.2.ffn.norm.beta"] - 2.0
        host.write("fresh", tensors)
        found = changes(host, "fresh", host.adapter("fresh"))
        up = torch.Size(tensors["layers.1.attn.out.up"].shape).numel()
        assert found["1", "attention"] == pytest.approx(3 * up**0.5, rel=1e-5)
        assert found["2", "norms"] == pytest.approx(2 * 16**0.5, rel=1e-5)
        assert sum(value > 0 for value in found.values()) == 2
    finally:
        host.unload("fresh")


def test_two_side_by_side(world: World):
    run = work.run(work.texts(24), "houlsby:size=4", task="classification", epochs=6, lr=1e-2)
    inlay.train(world.host, run, name="other", library=world.library)
    rows = Rows(
        "rows", [Example(row["text"], None, (), row["label"], "", f"r:{i}") for i, row in enumerate(work.texts(40, 5))]
    )
    made = compare(world.subject("classification"), world.subject("other"), rows)
    check(made.html)
    first, second = (measure(world.host, name, rows.examples)[0] for name in ("classification", "other"))
    assert made.numbers["metrics"] == {"a": first, "b": second}
    assert made.numbers["difference"]["value"] == pytest.approx(second["accuracy"] - first["accuracy"])
    answers = [world.host.predict([(name, e) for e in rows.examples]) for name in ("classification", "other")]
    assert made.numbers["disagreements"] == sum(a["label"] != b["label"] for a, b in zip(*answers, strict=True))
    for task in ("regression", "tagging", "qa", "multilabel", "mlm"):
        same = compare(world.subject(task), world.subject(task), Rows("rows", world.rows[task]))
        check(same.html)
        assert (same.numbers["difference"]["value"], same.numbers["disagreements"]) == (0.0, 0)
        assert "cannot be told apart" in same.numbers["verdict"]
    with pytest.raises(RunError, match="cannot be compared"):
        compare(world.subject("classification"), world.subject("regression"), rows)


@pytest.mark.parametrize(
    "bad", ["<script></script>", "<img src='x'>", "<a href='http://x'></a>", "<p onclick='x'></p>"]
)
def test_the_check_would_notice(bad: str):
    with pytest.raises(AssertionError):
        check(bad)
