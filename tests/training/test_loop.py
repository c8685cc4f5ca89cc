"""The loop: schedule, evaluations, early stopping, slots, faults of one run, stages, and what comes out."""

from __future__ import annotations

import json
import math
import re
import weakref
from typing import Any

import pytest
import torch
from training import work

import inlay
from inlay.errors import AdapterError, LibraryError, RunError
from inlay.runs.prepare import prepare
from inlay.training import milestones
from inlay.training.job import Job
from inlay.training.loop import Loop
from inlay.training.step import Step

Event = dict[str, Any]


def train(runs: Any, **how: Any) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    return inlay.train(work.host(), runs, callbacks=[events.append], **how), events


def only(events: list[Event], kind: str, index: int = 0) -> list[Event]:
    return [e for e in events if e["event"] == kind and e.get("index") == index]


# --- steps and the learning rate --------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.25, 0.9])
def test_the_learning_rate_rises_and_falls_in_straight_lines(warmup):
    _, events = train(work.run(lr=0.02, warmup=warmup, epochs=5))
    steps = 5 * math.ceil(16 / 4)
    rise = round(warmup * steps)
    expected = [0.02 * (s + 1) / rise for s in range(rise)]
    expected += [0.02 * (steps - s) / (steps - rise) for s in range(rise, steps)]
    assert [e["lr"] for e in only(events, "step")] == pytest.approx(expected)
    assert max(expected) == pytest.approx(0.02)
    assert [e["step"] for e in only(events, "step")] == list(range(1, steps + 1))


def test_a_constant_learning_rate_rises_and_stays():
    for warmup, rates in ((0.0, [3e-3] * 12), (0.25, [1e-3, 2e-3, *[3e-3] * 10])):
        run = work.run(work.texts(24), epochs=3, batch_size=4, lr=3e-3, val_size=8, warmup=warmup, schedule="constant")
        told = train(run)[1]
        assert [event["lr"] for event in told if event["event"] == "step"] == pytest.approx(rates)


def test_the_method_has_a_learning_rate_of_its_own():
    for method, written in (("houlsby:size=4", None), ("finetune:top=1", None), ("adapterbias", 3e-3)):
        result, events = train(work.run(method=method, lr=None, epochs=1, warmup=0.0))
        assert only(events, "step")[0]["lr"] == inlay.parse_method(method).learning_rate
        assert result.adapter.about["config"].get("lr") == written  # files say it where it was another one at first


def test_every_epoch_sees_every_row_once_in_another_order():
    data = prepare(work.run(work.texts(31), batch_size=4, val_size=8, seed=5), work.host())
    job = Job(0, "it", data)
    epochs: list[list[int]] = [[], [], []]
    for step in range(job.stage.steps):
        job.step = step
        epochs[step // job.steps_per_epoch] += [row.example for row in job.batch(None)]
    assert all(sorted(seen) == list(range(23)) for seen in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = Job(0, "it", prepare(data.run.model_copy(update={"seed": 6, "data": data.run.data}), work.host()))
    assert [row.example for row in other.batch(None)] != epochs[0][:4]


def test_at_most_so_many_steps():
    result, events = train(work.run(max_steps=7, epochs=5, warmup=0.0, lr=0.07))
    assert len(result.losses) == 7
    assert [h["step"] for h in result.history] == [4, 7]
    assert only(events, "step")[-1]["lr"] == pytest.approx(0.01)


# --- evaluations ------------------------------------------------------------------------------------------------


def test_once_per_epoch_or_as_often_as_asked():
    assert [h["epoch"] for h in train(work.run(epochs=3))[0].history] == [1, 2, 3]
    result, events = train(work.run(epochs=3, eval_every=5))
    assert [h["step"] for h in result.history] == [5, 10, 12]
    assert [h["loss"] for h in result.history] == pytest.approx(
        [sum(part) / len(part) for part in (result.losses[:5], result.losses[5:10], result.losses[10:])]
    )
    assert [{k: v for k, v in e.items() if k not in ("event", "run", "index")} for e in only(events, "eval")] == (
        result.history
    )


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> list[dict[str, torch.Tensor]]:
    """Evaluations during training give these values; what the adapter was at each of them."""
    left, seen = iter(values), []
    real = milestones.score

    def score(host: inlay.Host, name: str, *rest: Any) -> Any:
        scores = real(host, name, *rest)
        value = next(left, None)
        if value is not None:
            seen.append(host.read(name))
            scores["accuracy"] = value
        return scores

    monkeypatch.setattr(milestones, "score", score)
    return seen


def test_the_best_state_is_kept_not_the_last(monkeypatch):
    seen = scripted(monkeypatch, [0.5, 0.7, 0.9, 0.8, 0.1])
    result, _ = train(work.run(epochs=5, lr=0.02))
    assert (result.best_epoch, result.best_step) == (3, 12)
    for name, value in result.adapter.tensors.items():
        assert torch.equal(value, seen[2][name])
    assert any(not torch.equal(seen[4][n], v) for n, v in result.adapter.tensors.items())


def test_where_less_is_better_the_least_is_best(monkeypatch):
    seen = scripted(monkeypatch, [])
    result, _ = train(work.run(work.ratings(32), task="regression", metric="rmse", epochs=6, lr=0.05))
    values = [h["metrics"]["rmse"] for h in result.history]
    assert result.best_epoch == 1 + values.index(min(values))
    assert result.metric == "rmse"
    assert result.value == pytest.approx(min(values), rel=1e-4)
    assert seen == []


@pytest.mark.parametrize(
    ("values", "patience", "evaluations"),
    [([0.9, 0.5, 0.5, 0.5, 0.5], 2, 3), ([0.1, 0.1, 0.2, 0.1, 0.1], 2, 5), ([0.9, 0.5, 0.95, 0.4, 0.3], 1, 2)],
)
def test_patience(monkeypatch, values, patience, evaluations):
    scripted(monkeypatch, values)
    result, _ = train(work.run(epochs=5, patience=patience))
    assert len(result.history) == evaluations
    assert len(result.losses) == 4 * evaluations


def test_what_is_measured_is_what_is_served():
    """The metrics of a result are those of the finished adapter, loaded anew: gates gone, pruned, calibrated."""
    for method in ("adapterbias:l0=0.01", "diffprune:target=0.01"):
        host = work.host()
        run = work.run(work.texts(40), method, lr=0.02, epochs=4, name="it")
        result = inlay.train(host, run)
        data = prepare(run, work.host())
        answers = host.predict([("it", e.text) for e in data.validation.examples])
        right = sum(a["label"] == e.target for a, e in zip(answers, data.validation.examples, strict=True))
        assert result.metrics["validation"]["accuracy"] == right / len(answers)
        assert not any(n.endswith(".gate") for n in result.adapter.tensors)


def test_a_test_set_is_measured_and_never_chosen_on(tmp_path):
    rows = work.texts(16, seed=9)
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result, _ = train(work.run(test=str(file)))
    assert set(result.metrics) == {"validation", "test"}
    assert all(set(h["metrics"]) == set(result.metrics["test"]) for h in result.history)


# --- slots ------------------------------------------------------------------------------------------------------


def test_freed_slots_are_filled_again():
    runs = [work.run(epochs=1 + i % 3, seed=i) for i in range(6)]
    results, events = train(runs, slots=2)
    active: set[int] = set()
    most, waiting = 0, [2, 5, 1, 4, 0, 3]  # the longest first
    for event in events:
        if event["event"] == "begin":
            assert event["index"] == waiting.pop(0)
            active.add(event["index"])
        if event["event"] == "done":
            active.discard(event["index"])
        if event["event"] == "step":
            assert len(active) == 2 or not waiting
        most = max(most, len(active))
    assert (most, waiting, active) == (2, [], set())
    assert [len(r.losses) for r in results] == [4, 8, 12, 4, 8, 12]


@pytest.mark.parametrize("slots", [0, -1])
def test_no_slots_at_all_is_refused(slots):
    with pytest.raises(RunError, match=f"slots={slots}"):
        train([work.run()], slots=slots)


def test_a_host_is_left_as_it_was():
    host = work.host()
    host.add("mine", "houlsby:size=4", labels=2, seed=9)
    before = {n: t.clone() for n, t in host.read("mine").items()}
    inlay.train(host, [work.run(seed=i, method=m) for i, m in enumerate(["houlsby:size=4", "lora:rank=2"])])
    assert host.names == ["mine"]
    assert all(torch.equal(t, before[n]) for n, t in host.read("mine").items())
    assert all(p.grad is None for p in host.base.model.parameters())


def test_memory_that_runs_out_halves_the_slots_and_changes_nothing_else(monkeypatch):
    runs = [work.run(seed=i, method=m) for i, m in enumerate(["houlsby:size=4", "lora:rank=2", "norms", "bitfit"])]
    expected, _ = train(runs)
    real, calls = Step.backward, []

    def backward(self: Step, plan: Any) -> Any:
        calls.append(plan.runs)
        losses = real(self, plan)  # with gradients already there, as it would be
        if len(calls) in (1, 4):  # before the first step, and right after an evaluation
            raise torch.OutOfMemoryError("so full")
        return losses

    monkeypatch.setattr(Step, "backward", backward)
    found, events = train(runs)
    assert [e["slots"] for e in events if e["event"] == "slots"] == [2, 1]
    assert calls[:5] == [4, 2, 2, 2, 1]
    for one, other in zip(found, expected, strict=True):
        assert one.losses == pytest.approx(other.losses, abs=1e-5)
        assert [h["step"] for h in one.history] == [h["step"] for h in other.history]
        assert one.metrics == other.metrics


@pytest.mark.thin(1)
@pytest.mark.parametrize("when", range(1, 17))
def test_memory_that_runs_out_for_a_run_alone_leaves_those_that_stepped(monkeypatch, when):
    """Runs that change weights step after the others, which have taken their step then, and may be due or over."""
    methods = ["houlsby:size=4", "finetune:top=1", "norms", "finetune"]
    runs = [work.run(seed=i, method=m, epochs=2, batch_size=6) for i, m in enumerate(methods)]
    expected, _ = train(runs)
    real, calls = Step.backward, []

    def backward(self: Step, plan: Any) -> Any:
        calls.append(plan.runs)
        losses = real(self, plan)
        if len(calls) == when:
            raise torch.OutOfMemoryError("so full")
        return losses

    monkeypatch.setattr(Step, "backward", backward)
    found, _ = train(runs)
    assert calls[:2] == [2, 1]  # the two in the bank together, each of the others alone
    assert len(calls) > when, "memory never ran out"
    for one, other in zip(found, expected, strict=True):
        assert one.losses == pytest.approx(other.losses, abs=1e-5)
        assert [h["step"] for h in one.history] == [h["step"] for h in other.history]
        assert one.metrics == other.metrics


def test_room_is_made_when_the_failed_batch_is_gone(monkeypatch):
    """An error keeps the frames it went through alive, and what they hold: on a full device nothing could be copied."""
    real, held, alive = Loop._make_room, [], []

    def backward(self: Step, *rest: Any) -> Any:
        states = torch.zeros(4)
        held.append(weakref.ref(states))
        raise torch.OutOfMemoryError("so full")

    def make_room(self: Loop) -> None:
        alive.append(held[-1]() is not None)
        real(self)

    monkeypatch.setattr(Step, "backward", backward)
    monkeypatch.setattr(Loop, "_make_room", make_room)
    train([work.run(seed=i) for i in range(2)])
    assert alive == [False] * 3


def test_one_run_that_does_not_fit_fails_alone(monkeypatch):
    real = Step.backward

    def backward(self: Step, plan: Any) -> Any:
        if " run 1" in self.host and self.host.slot(" run 1") in plan.slots:
            raise torch.OutOfMemoryError("too large")
        return real(self, plan)

    monkeypatch.setattr(Step, "backward", backward)
    results, _ = train([work.run(seed=i) for i in range(3)])
    assert [r.ok for r in results] == [True, False, True]
    assert "batch_size" in results[1].problem
    with pytest.raises(RunError, match="no adapter"):
        results[1].adapter  # noqa: B018


# --- a run that fails -------------------------------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.parametrize("how", ["loss", "weights"])
def test_a_run_that_diverges_fails_alone(monkeypatch, how):
    methods = ["houlsby:size=4", "houlsby:size=4", "finetune:top=1", "norms"]
    runs = [work.run(seed=i, method=m) for i, m in enumerate(methods)]
    expected, _ = train([runs[0], runs[2], runs[3]])
    if how == "weights":
        runs[1] = runs[1].model_copy(update={"lr": 1e30})
    else:
        real = Step.backward

        def backward(self: Step, plan: Any) -> Any:
            slot = self.host.slot(" run 1") if " run 1" in self.host else None
            keys = plan.batch.passes[0].keys
            if slot in plan.slots and keys.of_slot[slot][1] == 2:
                stack, at = self.host.forward.bank.place(slot, "layers.0.attn.out.down")
                stack.data[at] = torch.nan
            return real(self, plan)

        monkeypatch.setattr(Step, "backward", backward)
    results, events = train(runs)
    assert [r.ok for r in results] == [True, False, True, True]
    assert re.search(r"^the loss is (nan|inf) at step \d+; try a lower learning rate", results[1].problem)
    assert not any(math.isnan(e["loss"]) for e in events if e["event"] == "step")
    assert only(events, "failed", 1)[0]["problem"] == results[1].problem
    for found, other in zip([results[0], *results[2:]], expected, strict=True):
        assert found.losses == pytest.approx(other.losses, abs=1e-5)
        assert found.metrics == other.metrics


def test_the_slot_of_a_run_that_diverged_is_clean_for_the_next():
    bad, good = work.run(seed=1, lr=1e30), work.run(seed=2)
    results, _ = train([bad, good], slots=1)
    assert not results[0].ok
    work.assert_identical(results[1], inlay.train(work.host(), good))


def test_a_single_run_that_fails_raises():
    host = work.host()
    with pytest.raises(RunError, match="lower learning rate"):
        inlay.train(host, work.run(lr=1e30))
    assert host.names == []
    with pytest.raises(RunError, match="decay=weights is for finetune"):
        inlay.train(host, work.run(decay="weights"))


def test_a_run_whose_data_is_wrong_fails_alone():
    results, _ = train([work.run(), inlay.Run(data="/nowhere/at-all.csv"), work.run(seed=1)])
    assert [r.ok for r in results] == [True, False, True]
    assert "at-all.csv" in results[1].problem
    json.dumps(results[1].document())


# --- data -------------------------------------------------------------------------------------------------------


def test_train_size_and_val_size():
    data = prepare(work.run(work.texts(60, classes=3), train_size=30, val_size="20%"), work.host())
    assert (len(data.train.examples), len(data.validation.examples)) == (30, 12)
    counts = [[e.target for e in part.examples].count("ask") for part in (data.train, data.validation)]
    assert counts == [10, 4]


def test_stratify_keeps_shares_and_can_be_off():
    rows = work.texts(90) + [row for row in work.texts(30, 1, 3) if row["label"] == "ask"]
    shares = []
    for stratify in (True, False):
        for seed in range(8):
            run = work.run(rows, val_size=20, stratify=stratify, seed=seed)
            held_out = [e.target for e in prepare(run, work.host()).validation.examples]
            shares.append((stratify, held_out.count("ask")))
    assert {n for stratify, n in shares if stratify} == {2}
    assert len({n for stratify, n in shares if not stratify}) > 1


def test_class_weights_are_those_of_a_weighted_cross_entropy(monkeypatch):
    rows = [row for i, row in enumerate(work.texts(60)) if row["label"] == "pos" or i % 6 == 1]
    run = work.run(rows, class_weights=True, dropout=False, max_steps=1, batch_size=16)
    data = prepare(run, work.host())
    targets = [e.target for e in data.train.examples]
    counts = [targets.count(label) for label in data.labels]
    assert data.weights == pytest.approx([len(targets) / (2 * n) for n in counts])
    assert counts[0] != counts[1]
    job = Job(0, "it", data)
    batch = job.batch(None)
    host = work.host()
    host.add("it", run.method, labels=data.labels, seed=run.seed)
    from inlay.engine.predict import batch_of

    logits = torch.stack(host.logits(batch_of(batch), ["it"] * len(batch))).detach()
    right = torch.tensor([row.target for row in batch])
    weights = torch.tensor(data.weights)[right]
    loss = (weights * -logits.log_softmax(-1)[torch.arange(len(batch)), right]).sum() / weights.sum()
    assert train(run)[0].losses == pytest.approx([loss.item()], abs=1e-6)
    plain = train(run.model_copy(update={"class_weights": False}))[0].losses
    assert plain != pytest.approx([loss.item()], abs=1e-4)


def test_class_weights_without_classes_are_refused():
    with pytest.raises(RunError, match="class weights"):
        train(work.run(work.ratings(), task="regression", class_weights=True))


def test_rows_in_memory_equal_rows_in_a_file(tmp_path):
    rows = work.texts(30)
    file = tmp_path / "reviews.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours, _ = train(work.run(rows))
    run = inlay.Run(**{**work.run(rows).config(), "data": str(file)})
    theirs, _ = train(run)
    assert ours.losses == theirs.losses
    assert (ours.name, theirs.name) == ("run-0", "reviews-0")


# --- results ----------------------------------------------------------------------------------------------------


def test_a_result_as_a_document():
    result, _ = train(work.run(method="lora:rank=2"))
    found = json.loads(json.dumps(result.document(), allow_nan=False))
    assert found["method"] == "lora:rank=2"
    assert found["metrics"]["validation"][found["metric"]] == result.value
    assert found["history"] == result.history
    assert found["config"]["data"] == "24 rows given as objects"
    assert found["parameters"]["adapter"] == inlay.parse_method("lora:rank=2").count(work.host().base.sites)
    assert found["parameters"]["head"] == 16 * 2 + 2
    assert "problem" not in found


def test_a_result_in_a_notebook():
    result, _ = train(work.run(name="a.b"))
    page = result._repr_html_()
    assert "<b>a.b</b>" in page
    assert "<svg" in page
    assert f"{result.value:.4f}" in page
    failed = train([work.run(), work.run(lr=1e30, seed=1)])[0][1]
    assert "try a lower learning rate" in failed._repr_html_()


def test_the_settings_of_a_result_train_it_again(tmp_path):
    file = tmp_path / "reviews.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in work.texts()))
    first, _ = train(inlay.Run(data=str(file), method="houlsby:size=4", epochs=2, batch_size=4, seed=7))
    work.assert_identical(train(inlay.Run(**first.config))[0], first)


# --- names and the library --------------------------------------------------------------------------------------


def test_a_run_with_a_name_is_loaded_and_answers():
    host = work.host()
    results = inlay.train(host, [work.run(name="tone"), work.run(work.entities(), name="who"), work.run(seed=1)])
    assert host.names == ["tone", "who"]
    tone, who = host.predict([("tone", "the film was good"), ("who", ["ana", "was", "in", "lima"])])
    assert tone["label"] in ("pos", "neg")
    assert len(who["tags"]) == 4
    assert torch.equal(host.read("tone")["head.weight"], results[0].adapter.tensors["head.weight"])


def test_one_run_may_be_named_in_the_call():
    host = work.host()
    assert inlay.train(host, work.run(), name="tone").name == "tone"
    assert host.names == ["tone"]
    with pytest.raises(RunError, match="one run"):
        inlay.train(host, [work.run()], name="other")


def test_names_that_are_taken():
    host = work.host()
    host.add("tone", "norms", labels=2)
    with pytest.raises(RunError, match="'tone' is already loaded"):
        inlay.train(host, work.run(name="tone"))
    with pytest.raises(RunError, match="two runs are named 'a'"):
        inlay.train(host, [work.run(name="a"), work.run(name="a")])


def test_finished_adapters_are_put_into_a_library(tmp_path):
    library = inlay.Library(tmp_path)
    result, _ = train(work.run(name="tone"), library=library)
    assert (result.version, result.library) == (1, str(tmp_path))
    found = library.get("tone")
    assert found.about["metrics"] == result.metrics
    host = work.host()
    host.load(found)
    assert host.predict([("tone", "a fine film")])[0]["label"] in ("pos", "neg")
    with pytest.raises(AdapterError):
        work.host(seed=1).load(found)


# --- stages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["houlsby:size=4", "lora:rank=2", "finetune:top=1"])
def test_text_first_then_labels_from_where_it_ended(method, monkeypatch):
    """The adapter moves while it learns words, and the label stage starts from there with a fresh head."""
    states: dict[str, list[dict[str, torch.Tensor]]] = {"begin": [], "stage": [], "next": []}
    host = work.host()
    real = Loop._step_all

    def go_on(self: Loop) -> None:
        if self.jobs[0].stage_index == 1 and not states["next"]:
            states["next"].append(host.read(" run 0"))
        real(self)

    def look(event: Event) -> None:
        if event["event"] in ("begin", "stage"):
            states[event["event"]].append(host.read(" run 0"))

    monkeypatch.setattr(Loop, "_step_all", go_on)
    run = work.run(method=method, pretrain_on_text=True, pretrain_epochs=2, seed=4)
    result = inlay.train(host, run, callbacks=[look])
    own = set(inlay.parse_method(method).params(host.base.sites))
    begin, ended, labels = (states[key][0] for key in ("begin", "stage", "next"))
    assert own <= begin.keys() & ended.keys() & labels.keys()
    assert any(not torch.equal(begin[n], ended[n]) for n in own)
    assert all(torch.equal(ended[n], labels[n]) for n in own)
    assert "head.dense" in ended
    assert labels["head.weight"].shape == (16, 2)
    assert result.losses[0] == pytest.approx(math.log(111), abs=2.5)
    assert len(result.losses) == 2 * 4 + 3 * 4
    assert [h["stage"] for h in result.history] == ["task"] * 3


def test_the_text_stage_learns_words():
    rows = [{"text": "the film is very good", "label": "a"}, {"text": "who meets ana in oslo", "label": "b"}] * 16
    run = work.run(rows, "finetune", lr=5e-3, pretrain_on_text=True, pretrain_epochs=12, epochs=1, val_size=4)
    losses = train(run)[0].losses
    n = 12 * 7
    assert sum(losses[n - 7 : n]) / 7 < 0.6 * sum(losses[:7]) / 7


def test_the_text_stage_has_its_own_rate_and_batch():
    rows = work.texts(24)
    how = {"pretrain_on_text": True, "pretrain_epochs": 2, "epochs": 1, "warmup": 0.0, "lr": 3e-3}
    told: list[dict[str, Any]] = []
    run = work.run(rows, pretrain_lr=1e-4, pretrain_batch_size=16, **how)
    inlay.train(work.host(), run, callbacks=[told.append])
    rates = [event["lr"] for event in told if event["event"] == "step"]
    assert rates == pytest.approx([1e-4, 0.5e-4, 3e-3, 0.75 * 3e-3, 0.5 * 3e-3, 0.25 * 3e-3])  # 16 rows: 1, 1, then 4s
    said = {"pretrain_lr": 3e-3, "pretrain_batch_size": 4}
    plain, alike = (train(work.run(rows, **how, **more))[0].losses for more in ({}, said))
    assert plain == alike  # without them they are those of the run


def test_a_stage_after_another_leaves_nothing_behind_for_the_next_run():
    """A run's place in the bank may change between stages; whoever takes the old one must not see its moments."""
    runs = [
        work.run(work.texts(12), "houlsby:size=8", seed=1, epochs=1, val_size=4),
        work.run(work.texts(12), "houlsby:size=8", seed=2, pretrain_on_text=True, pretrain_epochs=2, val_size=4),
        work.run(work.texts(12), "norms", seed=3, epochs=6, val_size=4),
        work.run(work.texts(24), "houlsby:size=5", seed=4),
    ]
    results, _ = train(runs, slots=2)
    for run, found in zip(runs, results, strict=True):
        assert found.losses == pytest.approx(train(run)[0].losses, abs=1e-5)


# --- what comes out ---------------------------------------------------------------------------------------------


def test_metrics_are_those_of_calibrated_answers():
    """A temperature moves what is above a cut-off other than one half, so it must be fitted before the scoring."""
    host = work.host()
    run = work.run(work.topics(40), task="multilabel:cutoff=0.4", name="it", epochs=4, lr=0.01)
    found = inlay.train(host, run).metrics["validation"]
    examples = prepare(run, work.host()).validation.examples
    requests = [("it", e.text) for e in examples]
    served, raw = (host.task("it").score(examples, host.predict(requests, raw=r), host.labels("it")) for r in (0, 1))
    assert found == served
    assert found != raw


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (work.texts(), {"head": "tanh2"}),
        (work.entities(), {}),
        ([{"text": row["text"]} for row in work.texts()], {"task": "mlm"}),
    ],
)
def test_the_head_is_counted_as_it_is(rows, settings):
    result, _ = train(work.run(rows, max_steps=1, **settings))
    own = {n: t for n, t in result.adapter.tensors.items() if n.startswith("head.")}
    assert result.parameters["head"] == sum(t.numel() for t in own.values()) > 16
    assert result.parameters["adapter"] + result.parameters["head"] == sum(
        t.numel() for t in result.adapter.tensors.values()
    )


def test_a_name_that_cannot_be_kept_is_refused_before_the_training(tmp_path):
    events: list[Event] = []
    with pytest.raises(LibraryError, match="bad name!"):
        inlay.train(work.host(), work.run(), name="bad name!", callbacks=[events.append])
    assert events == []


def test_runs_without_a_name_are_numbered_as_they_were_given():
    results, _ = train([work.run(max_steps=1), work.run(task="mlm", text="nothing"), work.run(max_steps=1, seed=1)])
    assert [(r.name, r.ok) for r in results] == [("run-0", True), ("run-1", False), ("run-2", True)]
