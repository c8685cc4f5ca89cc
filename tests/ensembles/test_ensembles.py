"""Several adapters that answer as one: alone, in mixed batches, from a library and in a service."""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from serve.place import until
from serve.tasks import ASKS, TASKS, put, running, same, without_version

import inlay
from inlay.engine.evaluate import measure
from inlay.errors import AdapterError, DamagedError, InlayError, LibraryError, SlotError
from inlay.library.cards import blob_path
from inlay.serve import pager
from inlay.serve.engine_types import Ask
from inlay.tasks import Example, parse
from inlay.tasks._together import disagreement

KINDS = ("tone", "long", "topics", "stars", "names", "asks")
METHODS = ("houlsby:size=4", "lora:rank=2", "finetune:top=1")


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return tiny.text_host()


def adapter(host: inlay.Host, kind: str, seed: int, method: str = "", **task: Any) -> inlay.Adapter:
    _, spec, labels = TASKS[kind]
    made = replace(parse(spec), **task)
    host.add("fresh", method or METHODS[seed % 3], task=made, labels=labels, seed=seed)
    tiny.shake(host, "fresh", seed)
    found = host.adapter("fresh")
    host.unload("fresh")
    return replace(found, name=f"{kind}{seed}")


@pytest.fixture(scope="module")
def members(host: inlay.Host) -> dict[str, tuple[inlay.Adapter, ...]]:
    fitted: dict[str, list[dict[str, Any]]] = {
        "tone": [{"temperature": 1.0}, {"temperature": 2.0}, {"temperature": 0.5}],
        "stars": [{"mean": 3.0}, {"mean": 2.5, "scale": 2.0}, {"mean": 3.5}],
    }
    return {
        kind: tuple(adapter(host, kind, seed, **fitted.get(kind, [{}] * 3)[seed]) for seed in range(3))
        for kind in KINDS
    }


@pytest.fixture(scope="module")
def loaded(host: inlay.Host, members: dict[str, tuple[inlay.Adapter, ...]]) -> inlay.Host:
    """Every ensemble under its kind, and every member under a name of its own."""
    for kind, own in members.items():
        host.load(inlay.Ensemble(own, (1, 2, 1), kind))
        for member in own:
            host.load(member)
    return host


def alone(host: inlay.Host, kind: str, given: Any) -> list[dict[str, Any]]:
    return [host.predict([(f"{kind}{seed}", given)])[0] for seed in range(3)]


@pytest.mark.skipif(not tiny.EXACT, reason="a close call may go either way")
def test_a_mixed_batch_gives_what_each_ensemble_gives_alone(loaded: inlay.Host):
    asks = [(name, given) for name, given in ASKS if name in KINDS] + [("tone1", "a fine film"), ("names0", "ana")]
    together = loaded.predict(asks)
    for ask, answer in zip(asks, together, strict=True):
        assert same(loaded.predict([ask])[0], answer)
        assert ("uncertainty" in answer) == (ask[0] in KINDS)
        assert answer["task"] == ask[0]


def test_probabilities_are_averaged_with_each_members_own_temperature(loaded: inlay.Host):
    (answer,) = loaded.predict([("tone", "a fine film")])
    own = alone(loaded, "tone", "a fine film")
    expected = {
        label: (own[0]["scores"][label] + 2 * own[1]["scores"][label] + own[2]["scores"][label]) / 4
        for label in ("bad", "fine", "good")
    }
    assert answer["scores"] == pytest.approx(expected, abs=1e-5)
    assert answer["label"] == max(expected, key=expected.__getitem__)
    assert answer["score"] == pytest.approx(max(expected.values()), abs=1e-5)
    assert 0 < answer["uncertainty"] < 1
    (raw,) = loaded.predict([("tone", "a fine film")], raw=True)
    assert raw["scores"] != pytest.approx(expected, abs=1e-4)


def test_values_are_averaged_on_the_scale_of_the_data(loaded: inlay.Host):
    (answer,) = loaded.predict([("stars", "a fine film")])
    values = [one["value"] for one in alone(loaded, "stars", "a fine film")]
    every = [values[0], values[1], values[1], values[2]]
    assert answer["value"] == pytest.approx(statistics.fmean(every), abs=1e-5)
    assert answer["uncertainty"] == pytest.approx(statistics.pstdev(every), abs=1e-5)


def test_labels_are_those_whose_mean_is_above_the_cutoff(loaded: inlay.Host):
    (answer,) = loaded.predict([("topics", "a book for ana")])
    own = [one["scores"] for one in alone(loaded, "topics", "a book for ana")]
    expected = {k: (own[0][k] + 2 * own[1][k] + own[2][k]) / 4 for k in own[0]}
    assert answer["scores"] == pytest.approx(expected, abs=1e-5)
    assert answer["label"] == [k for k, p in expected.items() if p >= 0.5]


def test_spans_need_more_than_half_of_the_votes():
    task, labels = parse("tagging"), ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")

    def say(tags: str, score: float) -> dict[str, Any]:
        own = tags.split()
        from inlay.tasks.tagging import _spans

        words = ("ana", "in", "new", "york")
        return {
            "tokens": list(words),
            "tags": own,
            "spans": _spans(Example(words=words), [], words, own, [score] * 4, True),
        }

    a, b, c = say("B-PER O B-LOC I-LOC", 0.9), say("B-PER O O B-LOC", 0.8), say("O O B-LOC I-LOC", 0.6)
    found = task.together([a, b, c], (1, 1, 1), labels)
    assert found["tags"] == ["B-PER", "O", "B-LOC", "I-LOC"]
    assert [(s["label"], s["start"], s["end"]) for s in found["spans"]] == [("PER", 0, 1), ("LOC", 2, 4)]
    assert [s["score"] for s in found["spans"]] == pytest.approx([1.7 / 3, 1.5 / 3])
    assert found["uncertainty"] == pytest.approx(3 / 12)
    assert task.together([a, b, c], (1, 3, 1), labels)["tags"] == ["B-PER", "O", "O", "B-LOC"]
    assert task.together([a, c], (1, 1), labels)["tags"] == ["O", "O", "B-LOC", "I-LOC"]  # half is not more
    beside = task.together([say("B-PER I-PER O O", 1), say("B-PER I-PER O O", 1)], (1, 1), labels)
    assert (beside["tags"], beside["uncertainty"]) == (["B-PER", "I-PER", "O", "O"], 0)
    apart = [say("B-LOC O O O", 1), say("B-LOC I-LOC O O", 1), say("O I-LOC O O", 1), say("B-LOC B-LOC O O", 1)]
    assert task.together(apart, (1, 1, 4, 5), labels)["tags"][:2] == ["B-LOC", "B-LOC"]


def test_words_get_the_tag_that_most_give_them():
    task = parse("tagging")
    answers = [
        {
            "tokens": ["a", "b"],
            "tags": list(tags),
            "spans": [{"label": t, "start": i, "end": i + 1, "score": 0.5} for i, t in enumerate(tags)],
        }
        for tags in (("X", "Y"), ("X", "Z"), ("Y", "Z"))
    ]
    found = task.together(answers, (1, 1, 1), ("X", "Y", "Z"))
    assert (found["tags"], found["uncertainty"]) == (["X", "Z"], pytest.approx(1 / 3))
    assert [span["label"] for span in found["spans"]] == ["X", "Z"]


def test_answers_to_questions_are_voted_for():
    task = parse("qa")
    here, there = (
        {"answer": a, "start": s, "end": s + 3, "score": p} for a, s, p in (("bob", 0, 0.4), ("ana", 8, 0.9))
    )
    found = task.together([here, there, here], (1, 1, 1), ("start", "end"))
    assert (found["answer"], found["score"]) == ("bob", pytest.approx(0.8 / 3))
    assert found["uncertainty"] == pytest.approx(1 / 3)
    assert task.together([here, there], (1, 1), ("start", "end"))["answer"] == "ana"  # the surer one


def test_uncertainty_is_disagreement_and_not_doubt():
    assert disagreement([(0.5, 0.5), (0.5, 0.5)], (1, 1)) == 0
    assert disagreement([(1.0, 0.0), (0.0, 1.0)], (1, 1)) == pytest.approx(1)
    assert disagreement([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)], (1, 1, 1)) == pytest.approx(1)
    p = [(0.9, 0.1), (0.6, 0.4)]
    h = [-(a * math.log(a) + b * math.log(b)) for a, b in [*p, (0.75, 0.25)]]
    assert disagreement(p, (1, 1)) == pytest.approx((h[2] - (h[0] + h[1]) / 2) / math.log(2))


def test_the_threshold_may_be_on_uncertainty(loaded: inlay.Host):
    (plain,) = loaded.predict([("tone", "a fine film")])
    low, high = (f"uncertainty={plain['uncertainty'] * times}" for times in (0.5, 2))
    assert loaded.predict([("tone", "a fine film")], threshold=low)[0]["label"] is None
    assert loaded.predict([("tone", "a fine film")], threshold=high)[0]["label"] == plain["label"]
    assert loaded.predict([("stars", "good")], threshold="uncertainty=0")[0]["value"] is None
    assert loaded.predict([("tone", "good")], top_k=1)[0].keys() >= {"uncertainty"}
    with pytest.raises(InlayError, match="'tone1' is one adapter"):
        loaded.predict([("tone1", "a fine film")], threshold="uncertainty=0.5")
    for wrong in ("doubt=1", "uncertainty=x", "uncertainty=-1"):
        with pytest.raises(InlayError, match="a score or uncertainty=NUMBER"):
            loaded.predict([("tone", "a")], threshold=wrong)


def test_an_ensemble_on_a_host(host: inlay.Host, members: dict[str, tuple[inlay.Adapter, ...]]):
    own = tiny.text_host()
    own.load(inlay.Ensemble(members["tone"], name="tone"))
    assert (own.names, "tone" in own, own.labels("tone")) == (["tone"], True, ("bad", "fine", "good"))
    assert own.task("tone").spec == "classification"
    assert "1 adapter: tone" in repr(own)
    for use in (own.adapter, own.head, own.penalty, own.slot):
        with pytest.raises(SlotError, match="'tone' is an ensemble of 3 adapters: name a member"):
            use("tone")
    for name in ("tone", "tone#2"):
        with pytest.raises(SlotError, match="already loaded"):
            own.load(members["tone"][0], name)
    own.unload("tone")
    assert (own.names, own.forward.bank.slots) == ([], tiny.text_host().forward.bank.slots)
    own.load(members["tone"][0], "tone#3")
    with pytest.raises(SlotError, match="'tone#3' is already loaded"):
        own.load(inlay.Ensemble(members["tone"], name="tone"))
    assert own.names == ["tone#3"]  # all or none


def test_it_is_measured_by_its_own_answers(loaded: inlay.Host):
    examples = [
        Example(f"{word} film", target=label) for word in ("good", "bad", "a fine") for label in ("bad", "good")
    ]
    found, unknown = measure(loaded, "tone", [*examples, Example("x", target="new")])
    answers = loaded.predict([("tone", e.text) for e in examples])
    right = sum(a["label"] == e.target for a, e in zip(answers, examples, strict=True))
    assert found["accuracy"] == pytest.approx(right / 7)
    assert unknown == {"new"}


def test_what_cannot_answer_as_one(host: inlay.Host, members: dict[str, tuple[inlay.Adapter, ...]]):
    one, two, _ = members["tone"]
    columns = {"columns": {"text": "t", "label": "l"}}
    for wrong, said in (
        ([one], "at least two different members, not 1"),
        ([one, members["long"][0]], "tone0 and long0 cannot answer as one: only one of them knows the label 'bad'"),
        ([one, members["stars"][0]], "one is for classification, the other for regression"),
        ([one, replace(two, labels=two.labels[::-1])], "their labels have another order"),
        (
            [replace(one, base_name="mine"), replace(two, base="sha256:other", base_name="their/own")],
            r"they belong to different bases \(mine sha256:\w+, their/own sha256:other\)",
        ),
        ([one, replace(two, task="classification:max_length=20")], "max_length is None in one and 20 in the other"),
        ([one, replace(two, head=None)], "tone1 gives no answers"),
        ([one, replace(two, task="mlm")], "tone1 gives no answers"),
        ([one, inlay.Ensemble((one, two), name="both")], "both is an ensemble itself; name its members instead"),
        (
            [replace(one, about=columns), replace(two, about={"columns": {**columns["columns"], "pair": "p"}})],
            "one was trained on pairs of texts, the other on single texts",
        ),
    ):
        with pytest.raises(AdapterError, match=said):
            inlay.Ensemble(tuple(wrong))
    with pytest.raises(AdapterError, match="every member counts once or more often"):
        inlay.Ensemble((one, two), (1, 0))


@pytest.fixture
def library(tmp_path: Path, members: dict[str, tuple[inlay.Adapter, ...]]) -> inlay.Library:
    found = inlay.Library(tmp_path / "library")
    for member in members["tone"]:
        found.put(member)
    return found


def both(library: inlay.Library, members: dict[str, tuple[inlay.Adapter, ...]]) -> inlay.Ensemble:
    a, b, _ = members["tone"]
    return inlay.Ensemble((a, b), (1, 2), "both", {"metric": "accuracy"}, ("tone0@1", ""))


def test_a_library_gives_back_what_was_put(library: inlay.Library, members: Any):
    made = both(library, members)
    entry = library.put(made)
    assert (entry.ref, entry.card["method"], entry.card["task"]) == ("both@1", "ensemble", "classification")
    assert entry.card["parents"] == ["tone0@1"]
    assert [one.get("ref", "") for one in entry.card["members"]] == ["tone0@1", ""]
    assert entry.size > sum(member.bytes for member in entry.members) > 0
    again = library.get("both")
    assert isinstance(again, inlay.Ensemble)
    assert (again.weights, again.refs, again.about) == (made.weights, made.refs, made.about)
    assert [m.content() for m in again.members] == [m.content() for m in made.members]
    assert library.put(again).ref == "both@1"  # nothing has changed
    assert library.put(inlay.Ensemble(made.members, (1, 3), "both")).ref == "both@2"
    assert library.verify() == []
    with pytest.raises(AdapterError, match="both@1 is an ensemble of 2; it cannot be exported"):
        library.read_adapter(entry, "exported")
    with pytest.raises(AdapterError, match="is an ensemble, which only names the files of its members"):
        inlay.Adapter.read(library.local / "blobs" / f"{entry.sha256}.safetensors")


def test_a_copy_in_another_library_knows_its_base(library: inlay.Library, members: Any, tmp_path: Path):
    one, two, _ = (replace(member, base_name="some/base") for member in members["tone"])
    library.put(inlay.Ensemble((one, two), name="both"))
    entry = inlay.Library(tmp_path / "other").put(library.get("both"))
    assert entry.card["base_name"] == "some/base"


def test_members_stay_as_long_as_the_ensemble(library: inlay.Library, members: Any):
    entry = library.put(both(library, members))
    for ref in ("tone0", "tone0@1"):
        with pytest.raises(LibraryError, match="tone0@1 is a member of the ensemble both@1; remove that first"):
            library.remove(ref)
    library.remove("tone1")  # it is no version that the ensemble names, only the same file
    library.gc(grace=0)
    assert library.verify() == []
    assert len(library.get("both").members) == 2  # type: ignore[union-attr]
    library.remove("both")
    library.restore("both")
    library.remove("both")
    library.remove("tone0")
    library.restore("both")
    library.restore("tone0")
    library.alias("tone2", "prod", 1)
    with pytest.raises(LibraryError, match="tone2@1 is what tone2@prod points to"):
        library.remove("both", "tone2")
    assert library.verify() == []
    assert library.names() == ["both", "tone0", "tone2"]  # all or none
    assert [gone.ref for gone in library.remove("tone0", "both", "both@1")] == ["tone0@1", "both@1"]
    (library.local / blob_path(entry.members[1].sha256)).unlink()
    with pytest.raises(LibraryError, match="both@1 cannot be restored: its content was deleted"):
        library.restore("both")
    library.gc(grace=0)
    gone = {member.sha256 for member in entry.members}
    assert not gone & {path.name.partition(".")[0] for path in (library.local / "blobs").iterdir()}


def test_damage_is_noticed(library: inlay.Library, members: Any):
    entry = library.put(both(library, members))
    blob = library.local / "blobs" / f"{entry.members[1].sha256}.safetensors"
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert any(problem.ref == "both@1" for problem in library.verify())
    with pytest.raises(DamagedError, match=r"both@1: its member tone1#.* is damaged: .* is not what its name says"):
        library.get("both")
    blob.unlink()
    with pytest.raises(DamagedError, match=r"both@1: its member tone1#.* cannot be read: .* is missing"):
        library.get("both")
    blob.write_bytes(content)
    assert library.verify() == []
    card = library.local / "adapters" / "both" / "1.json"
    edited = json.loads(card.read_text())
    edited["members"] = edited["members"][:1]
    from inlay.library.cards import digest_of

    card.write_text(json.dumps({**edited, "digest": digest_of(edited)}))
    with pytest.raises(DamagedError, match="names other members than its file"):
        library.get("both")


def test_a_killed_put_leaves_a_whole_library(library: inlay.Library, members: Any, monkeypatch: pytest.MonkeyPatch):
    made, written = both(library, members), []
    replace_ = library.storage.replace

    def killed(path: str, content: bytes) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        replace_(path, content)

    monkeypatch.setattr(library.storage, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        library.put(made)
    monkeypatch.undo()
    assert library.verify() == []
    assert "both" not in library.names()
    assert library.put(made).ref == "both@1"


@pytest.mark.skipif(not tiny.EXACT, reason="a close call may go either way")
@pytest.mark.parametrize("resident", [3, 64])
def test_served_equals_offline(members: Any, tmp_path: Path, resident: int):
    host, twin = tiny.text_host(), tiny.text_host()
    library = inlay.Library(tmp_path / "library")
    made = {kind: inlay.Ensemble(own, (1, 2, 1), kind) for kind, own in members.items()}
    for one in made.values():
        library.put(one)
        twin.load(one)
    whole = put(library, twin, "whole", "whole", 7)
    twin.load(whole)
    asks = [(name, given) for name, given in ASKS if name in (*KINDS, "whole")]
    with running(host, library, {kind: kind for kind in (*KINDS, "whole")}, resident=resident) as engine:
        pending = [engine.submit(Ask(name, given)) for name, given in asks * 2]
        for (name, given), one in zip(asks * 2, pending, strict=True):
            assert same(without_version(one.result(60)), twin.predict([(name, given)])[0])
        served = {one.name: one for one in engine.tasks()}
        assert served["tone"].card["method"] == "ensemble"
        changed = inlay.Ensemble(members["tone"][:2], name="tone")
        library.put(changed)
        engine.serve("tone", "tone")
        twin.unload("tone")
        twin.load(changed)
        assert same(without_version(engine.submit(Ask("tone", "good")).result(60)), twin.predict([("tone", "good")])[0])
        until(lambda: not any(name.startswith("tone2#") for name in host.names))  # who is no member now leaves
        assert sum(name.startswith("tone") for name in host.names) == 2


def test_a_service_refuses_what_it_has_no_room_for(members: Any, library: inlay.Library):
    library.put(inlay.Ensemble(members["tone"], name="three"))
    said = "it has 3 members, and there is room for 2"
    with running(tiny.text_host(), library, {}, resident=2) as engine, pytest.raises(AdapterError, match=said):
        engine.serve("three", "three")


def test_an_ensemble_that_memory_cannot_hold_holds_nobody_up(members: Any, library: inlay.Library, monkeypatch):
    for kind in ("tone", "long"):
        library.put(inlay.Ensemble(members[kind], name=kind))
    host, full = tiny.text_host(), threading.Event()
    enter = host.enter

    def entered(name: str, *how: Any) -> None:
        if full.is_set() and len(host.names) == 2:
            raise torch.OutOfMemoryError("no room")
        enter(name, *how)

    monkeypatch.setattr(host, "enter", entered)
    monkeypatch.setattr(pager, "RETRY", 0.0)
    with running(host, library, {"tone": "tone", "long": "long", "one": "tone0"}, resident=3) as engine:
        for name in ("tone", "long"):
            assert engine.submit(Ask(name, "good")).result(20)
        full.set()
        names = ("tone", "long", "one")
        with engine._change:  # all wait when memory turns out to be full
            waiting = {name: engine.submit(Ask(name, "good"), time.monotonic() + 10) for name in names}
        assert waiting.pop("one").result(20)
        for name, one in waiting.items():
            with pytest.raises(InlayError, match=f"{name}@1.* cannot be "):
                one.result(20)
            with pytest.raises(AdapterError, match="it has 3 members, and there is room for 2"):
                engine.submit(Ask(name, "good"))


def test_a_member_that_is_damaged_fails_the_ensemble_alone(members: Any, library: inlay.Library):
    entry = library.put(both(library, members))
    with running(tiny.text_host(), library, {"both": "both", "tone2": "tone2"}) as engine:
        assert engine.submit(Ask("tone2", "good")).result(60)
    (library.local / "blobs" / f"{entry.members[1].sha256}.safetensors").write_bytes(b"")
    with running(tiny.text_host(), library, {"tone2": "tone2"}) as engine:
        said = r"^both@1: its member tone1#.* is not what its name says"
        with pytest.raises(DamagedError, match=said):
            engine.serve("both", "both")
        engine.serve("both", "both", read=False)
        for _ in range(2):  # while it waits, and when it is known
            with pytest.raises(DamagedError, match=said):
                engine.submit(Ask("both", "good")).result(60)
        assert engine.submit(Ask("tone2", "good")).result(60)
