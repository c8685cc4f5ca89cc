"""`inlay train`: from a file to an adapter that answers; what it prints; stopping and going on; mistakes."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import tiny
from rich.console import Console
from training import work
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.cli.train_display import Progress, clock, decimals
from inlay.library.library import Library
from inlay.runs.run import Run, data_name
from inlay.training.step import Step

PROMISED = {"name", "version", "method", "parameters", "metrics", "best_epoch", "seconds", "library"}
QUICK = ("--max-steps", "2", "--batch-size", "4")


def questions(n: int = 12) -> list[dict[str, Any]]:
    places = ["lima", "oslo"]
    return [
        {"question": "where was ana ?", "context": f"{'so ' * i}ana was in {places[i % 2]} .", "answer": places[i % 2]}
        for i in range(n)
    ]


ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": work.texts(),
    "multilabel": work.topics(),
    "regression": work.ratings(),
    "tagging": work.entities(),
    "qa": questions(),
    "mlm": work.texts(),
}


@dataclass(frozen=True)
class Place:
    base: str
    folder: Path

    @property
    def library(self) -> Library:
        return Library(self.folder / "library")

    def write(self, rows: Sequence[Mapping[str, Any]], name: str = "rows.jsonl") -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    def call(self, command: str, *arguments: Any) -> Any:
        more = ["--base", self.base] if command == "train" and "--base" not in arguments else []
        where = [*more, "--library", str(self.library.root)]
        return CliRunner().invoke(app, [command, *map(str, arguments), *where], env={"COLUMNS": "80"})

    def train(self, *arguments: Any) -> Any:
        """The JSON document of a training that went well."""
        done = self.call("train", *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fails(self, *arguments: Any, code: int = 1) -> str:
        done = self.call("train", *arguments)
        assert done.exit_code == code, done.output
        assert isinstance(done.exception, SystemExit)
        assert code == 2 or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1)
        return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("train") / "base")


@pytest.fixture
def place(base: str, tmp_path: Path) -> Place:
    return Place(base, tmp_path)


# --- what comes of it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ROWS)
def test_every_task_is_trained_kept_and_used(place: Place, task: str):
    data = place.write(ROWS[task])
    done = place.call("train", data, "--name", "mine", "--json", *QUICK, *(["--task", "mlm"] if task == "mlm" else []))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document.keys() >= PROMISED
    assert (document["name"], document["version"], document["method"]) == ("mine", 1, "houlsby")
    assert document["library"] == str(place.library.root)
    assert document["metrics"]["validation"].keys() >= {document["metric"]}
    assert document["parameters"]["adapter"] > 0
    assert 0 < document["best_epoch"] <= 1
    assert document["seconds"] > 0
    assert f"task: {task}, " in done.stderr
    assert place.library.find("mine").card["metrics"] == document["metrics"]
    evaluated = place.call("eval", "mine", data, "--json")
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.stdout)["rows"] == len(ROWS[task])
    if task != "mlm":
        pair = ["--pair", "ana was in lima ."] if task == "qa" else []
        answered = place.call("predict", "mine", "where was ana ?", *pair, "--json")
        assert json.loads(answered.stdout)[0]["task"] == "mine"


def test_training_learns(place: Place):
    words = {"pos": "good fine love", "neg": "bad awful hate"}
    data = place.write([{"text": w, "label": label} for label, some in words.items() for w in some.split()] * 2)
    asked = [data, "--val", data, "--epochs", 30, "--lr", 0.01, "--batch-size", 6, "--no-dropout"]
    assert place.train(*asked)["metrics"]["validation"]["accuracy"] == 1


def test_without_json_people_read_stdout(place: Place):
    done = place.call("train", place.write(work.texts()), "--name", "mine", *QUICK)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"base: {place.base}, " in done.stdout
    assert "mine: step 2/2, loss " in done.stdout
    assert f"mine@1: after 2 steps (epoch 0.3), 0:00, saved to {place.library.root}\n" in done.stdout
    assert 'Try: inlay predict mine "a text"\n' in done.stdout


def test_the_hint_at_the_end_fits_the_task(place: Place):
    for rows, more, said in (
        (questions(), [], '"a question" --pair "a context"\n'),
        (work.pairs(), ["--text", "a", "--pair", "b"], '"a text" --pair "another text"\n'),
        (work.texts(), ["--task", "mlm"], None),
    ):
        out = place.call("train", place.write(rows), "--name", "mine", *QUICK, *more).stdout
        assert ("Try: " in out) == (said is not None)
        assert said is None or f"Try: inlay predict mine {said}" in out


def test_what_is_said_about_the_data(place: Place):
    rows = work.texts(30)
    rows += [rows[0], {"text": "film " * 90, "label": "pos"}]
    test = place.write([rows[2], rows[3], {"text": "soup", "label": "pos"}], "test.jsonl")
    out = place.call("train", place.write(rows), "--test", test, "--val", test, *QUICK).stdout
    assert 'guessed: text = "text", label = "label", task = classification (pass --text, --pair, --label or' in out
    assert "task: classification, 32 rows to train, 3 to validate, 3 to test\n32 rows, 2 classes\n" in out
    assert "  pos  17   53.1 %\n  neg  15   46.9 %\n" in out
    assert "tokens per text: " in out
    assert " 92, mean " in out
    assert "1 text (3.1 %) is longer than 64 tokens\n" in out
    assert "texts that are too long are cut" in out
    assert "1 row repeats the text of an earlier row\n" in out
    assert "2 of 3 test rows also appear in train\n" in out
    chosen = ["--text", "text", "--label", "label", "--task", "classification"]
    assert "guessed" not in place.call("train", place.write(rows), *QUICK, *chosen).stdout


def test_sizes(place: Place):
    data = place.write(work.texts(40))
    for more, train, validation in (
        ([], 36, 4),
        (["--val-size", 10], 30, 10),
        (["--val-size", "50%", "--train-size", 8], 8, 20),
        (["--train-size", "25%"], 10, 4),
        (["--no-stratify", "--train-size", 10], 10, 4),
    ):
        out = place.call("train", data, *QUICK, *more).stdout
        assert f"{train} rows to train, {validation} to validate\n" in out, more


def test_files_of_their_own(place: Place):
    data, other = place.write(work.texts(20)), place.write(work.texts(6, seed=9), "other.jsonl")
    document = place.train(data, "--val", other, "--test", other, *QUICK)
    assert document["metrics"]["test"] == document["metrics"]["validation"]
    out = place.call("train", data, "--val", other, "--val-size", 3, *QUICK).stdout
    assert "20 rows to train, 6 to validate\n" in out
    assert "(--val-size) is not used" in out


def test_a_folder_with_splits(place: Place):
    for split, rows in (("train", 20), ("dev", 6), ("test", 4)):
        place.write(work.texts(rows, seed=rows), f"{split}.jsonl")
    document = place.train(place.folder, "--name", "mine", *QUICK)
    assert document["metrics"].keys() == {"validation", "test"}
    place.write([{"text": "secret"}] * 4, "test.jsonl")
    done = place.call("train", place.folder, "--name", "mine", *QUICK)
    assert f"{place.folder / 'test.jsonl'}: its rows have no label, so they are left out\n" in done.stdout
    assert "label" in place.fails(place.folder / "train.jsonl", "--test", place.folder / "test.jsonl")


def test_a_label_that_only_the_test_rows_have(place: Place):
    data, rows = place.write(work.texts(20)), work.texts(4, seed=5)
    right = place.train(data, "--test", place.write(rows, "test.jsonl"), *QUICK)
    rows = [{**row, "label": "new"} if i == 0 else row for i, row in enumerate(rows)]
    done = place.call("train", data, "--test", place.write(rows, "test.jsonl"), *QUICK, "--json")
    assert "test rows have labels that training never sees: new\n" in done.stderr
    found = json.loads(done.stdout)["metrics"]["test"]["accuracy"]
    assert found in (right["metrics"]["test"]["accuracy"], right["metrics"]["test"]["accuracy"] - 0.25)


def test_the_seed_decides_everything(place: Place):
    data = place.write(work.texts(40))

    def trained(seed: int, name: str) -> tuple[Any, str]:
        document = place.train(data, "--name", name, "--seed", seed, "--epochs", 2, "--no-dropout")
        return document["history"], place.library.find(name).sha256

    # the name is part of the blob, so the same name is trained in turn
    first, other, again = trained(3, "mine"), trained(4, "mine"), trained(3, "mine")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert place.library.versions("mine") == [1, 2, 3]


def test_every_setting_has_an_option_that_reaches_it(place: Place):
    rows = work.texts(40)
    val = place.write(rows[:8], "val.jsonl")
    given: dict[str, Any] = {
        "task": "classification", "method": "finetune:top=1", "head": "tanh2", "pool": "mean", "text": "text",
        "label": "label", "format": "jsonl", "encoding": "utf-8", "val": val, "val_size": "5", "test": val,
        "train_size": "20", "lr": 0.001, "epochs": 2, "max_steps": 3, "batch_size": 5, "max_length": 20,
        "long": "windows", "warmup": 0.2, "weight_decay": 0.01, "decay": "weights", "clip": 0.5, "eval_every": 2,
        "head_dropout": 0.2, "schedule": "constant",
        "patience": 4, "metric": "f1_macro", "seed": 7, "pretrain_epochs": 1, "pretrain_lr": 0.002,
        "pretrain_batch_size": 6, "choose_by": "last", "few_shot_steps": 9,
        "few_shot_temperature": 0.2, "folds": 0, "split_seed": 3,
    }  # fmt: skip
    flags = {"stratify": "--no-stratify", "dropout": "--no-dropout", "few_shot": "--no-few-shot"}
    flags |= {
        name: f"--{name.replace('_', '-')}"
        for name in ("class_weights", "pretrain_on_text", "skip_bad_rows", "attention_dropout")
    }
    options = [str(part) for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    config = place.train(place.write(rows), "--name", "mine", *options, *flags.values())["config"]
    expected = {**given, **{name: name not in ("stratify", "dropout", "few_shot") for name in flags}, "name": "mine"}
    assert config == {**expected, "data": str(place.folder / "rows.jsonl")}
    left_out = {"pair", "fold", "teacher", "unlabelled", "test_size"}  # the last does not go with test
    assert Run.model_fields.keys() - config.keys() == left_out


def test_a_second_column_of_text(place: Place):
    document = place.train(place.write(work.pairs()), "--text", "a", "--pair", "b", *QUICK)
    assert document["config"]["pair"] == "b"


def test_bad_rows_are_left_out_when_asked(place: Place):
    data = place.write([*work.texts(20), {"text": "", "label": "pos"}])
    assert f"{data}:21: the column 'text' is empty" in place.fails(data, *QUICK)
    done = place.call("train", data, "--skip-bad-rows", *QUICK)
    assert done.exit_code == 0
    assert f"skipped 1 row that cannot be used; the first: {data}:21: " in done.stdout


def test_first_on_the_texts_alone(place: Place):
    data = place.write(work.texts(20))
    plain, pretrained = (place.train(data, *QUICK, *more) for more in ([], ["--pretrain-on-text"]))
    assert [entry["step"] for entry in plain["history"]] == [2]
    assert [entry["step"] for entry in pretrained["history"]] == [3 * 5 + 2]  # three passes over 18 rows of 4
    out = place.call("train", data, *QUICK, "--pretrain-on-text", "--seed", 2).stdout
    assert "first on the texts alone, with a fresh transform over the frozen word embeddings\n" in out


@pytest.mark.parametrize("method", ["finetune", "finetune:top=1", "lora:rank=2", "adapterbias", "bitfit"])
def test_methods(place: Place, method: str):
    data = place.write(work.texts())
    document = place.train(data, "--name", "mine", "--method", method, *QUICK)
    assert document["method"] == method
    answer = json.loads(place.call("predict", "mine", "a good film", "--json").stdout)[0]
    assert answer["label"] in ("pos", "neg")


def test_a_base_given_by_a_relative_path_is_found_from_elsewhere(place: Place, monkeypatch: pytest.MonkeyPatch):
    data = place.write(work.texts())
    monkeypatch.chdir(Path(place.base).parent)
    place.train(data, "--name", "mine", "--base", Path(place.base).name, *QUICK)
    monkeypatch.chdir(place.folder)
    assert place.call("predict", "mine", "a good film").exit_code == 0


def test_logs(place: Place):
    pytest.importorskip("tensorboard")
    lines, folder = place.folder / "log.jsonl", place.folder / "curves"
    place.train(place.write(work.texts()), *QUICK, "--log", f"jsonl:{lines}", "--log", f"tensorboard:{folder}")
    events = [json.loads(line)["event"] for line in lines.read_text().splitlines()]
    assert events == ["begin", "step", "step", "eval", "done"]
    assert list(folder.rglob("events.out.tfevents.*"))


# --- stopping and going on ----------------------------------------------------------------------------------------


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C in the middle of these steps, with the handler that `main` installs."""
    steps: list[int] = []
    taken, real = [0], Step.backward

    def backward(step: Step, *rest: Any) -> Any:
        taken[0] += 1
        if taken[0] in steps:
            signal.raise_signal(signal.SIGINT)
        return real(step, *rest)

    def handler(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Step, "backward", backward)
    before = signal.signal(signal.SIGINT, handler)
    yield steps
    assert signal.signal(signal.SIGINT, before) is handler, "the handler was not put back"


def arguments(place: Place, data: str) -> list[str]:
    return [data, "--name", "mine", "--batch-size", "4", "--epochs", "2", "--save-every", "1e9"]


def test_an_interrupt_finishes_the_step_and_says_how_to_go_on(
    place: Place, interrupts: list[int], monkeypatch: pytest.MonkeyPatch
):
    asked = arguments(place, place.write(work.texts(30), "a file.jsonl"))
    whole = place.train(*asked)
    digest = place.library.find("mine").sha256
    interrupts.append(14 + 5)  # the whole training took 14 steps
    monkeypatch.setattr("sys.argv", ["/bin/inlay", "train", *asked, "--restart"])
    done = place.call("train", *asked)
    assert done.exit_code == 130
    assert done.stderr == ""
    again = f"  inlay train '{asked[0]}' --name mine --batch-size 4 --epochs 2 --save-every 1e9 --resume\n"
    assert done.stdout.endswith(f"\nstopped; finished work is saved. To continue:\n{again}")
    assert "pass --resume to continue it, or --restart to start over" in place.fails(*asked)
    resumed = place.train(*asked, "--resume")
    assert resumed["history"] == whole["history"]
    assert place.library.find("mine").sha256 == digest
    assert not (place.library.local / "runs" / "mine").exists()


def test_restart_forgets_what_was_done(place: Place, interrupts: list[int]):
    asked = arguments(place, place.write(work.texts(30)))
    interrupts.append(5)
    assert place.call("train", *asked).exit_code == 130
    said = place.fails(*asked, "--resume", "--lr", 0.1)
    assert "mine have changed since it started: lr; use the same ones to resume, or start over (--restart)" in said
    done = place.call("train", *asked, "--restart", "--lr", 0.1, "--log", f"jsonl:{place.folder / 'log'}")
    assert done.exit_code == 0
    steps = [json.loads(line) for line in (place.folder / "log").read_text().splitlines()]
    assert [one["step"] for one in steps if one["event"] == "step"] == list(range(1, 15))


def test_an_impatient_interrupt_promises_nothing(place: Place, interrupts: list[int], monkeypatch: pytest.MonkeyPatch):
    real = Step.backward

    def twice(step: Step, *rest: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return real(step, *rest)

    monkeypatch.setattr(Step, "backward", twice)
    done = place.call("train", *arguments(place, place.write(work.texts(30))))
    assert done.exit_code == 130
    assert "To continue" not in done.stdout
    assert done.stdout.endswith("\nstopped before anything could be saved\n")


def test_a_run_that_fails_leaves_nothing_behind(place: Place):
    asked = [place.write(work.texts(30)), "--lr", 1e30, "--clip", 1e30, "--name", "mine", "--save-every", 0]
    assert "try a lower learning rate" in place.fails(*asked, "--method", "lora")
    assert place.library.names() == []
    assert not (place.library.local / "runs" / "mine").exists()


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metric", "acuracy"], "unknown metric 'acuracy'. Did you mean accuracy?"),
        (["--method", "hulsby"], "unknown method 'hulsby'. Did you mean houlsby?"),
        (["--task", "clasification"], "Did you mean classification?"),
        (["--head", "tanh"], "unknown head 'tanh'. Did you mean tanh2?"),
        (["--pool", "max"], "unknown pooling 'max'"),
        (["--format", "cvs"], "Did you mean csv?"),
        (["--weights", "int4"], "Did you mean int8?"),
        (["--weights", "int8"], "int8 is for serving; train with plain or fp8"),
        (["--name", "résumé"], "'résumé'"),
        (["--name", "-x"], "'-x'"),
        (["--name", "a/b"], "'a/b'"),
        (["--name", "x" * 101], "xxx"),
        (["--epochs", "-1"], "greater than or equal to 0"),
        (["--lr", "-1"], "greater than 0"),
        (["--long", "sometimes"], "'cut', 'windows'"),
        (["--train-size", "lots"], "a number of rows such as 1000, or a share such as 10%"),
        (["--val-size", "1.5"], "a number of rows such as 1000, or a share such as 10%"),
        (["--log", "jsonn:x"], "jsonl"),
        (["--log", "jsonl:"], "does not say where to log"),
        (["--method", "houlsby:size=abc"], "size=abc is not valid: expected a whole number"),
        (["--task", "classification:positive"], "is not key=value"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_wrong_value_is_2_and_names_the_option(place: Place, arguments: list[str], said: str):
    message = place.fails(place.write(work.texts()), *arguments, code=2)
    assert f"error: {arguments[0]}: " in message
    assert said in message
    assert place.library.names() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metric", "pearson"], "unknown metric 'pearson' for this classification task"),
        (["--train-size", "24"], "leaves none for validation"),
        (["--val-size", "900"], "900"),
        (["--max-length", "900"], "max_length=900 is more than"),
        (["--decay", "weights"], "decay=weights is for finetune"),
        (["--task", "regression", "--class-weights"], "holds 'pos'; expected a number"),
        (["--task", "mlm", "--class-weights"], "class weights are for classes"),
        (["--text", "label", "--label", "label"], "each needs its own"),
        (["--text", "nosuch"], "no column 'nosuch'"),
        (["--val", "none.csv"], "none.csv: there is no such file"),
        (["--test", "none.csv"], "none.csv: there is no such file"),
        (["--base", "nowhere/at-all/here"], "nowhere/at-all/here"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_1(place: Place, arguments: list[str], said: str):
    assert said in place.fails(place.write(work.texts()), *arguments)
    assert place.library.names() == []


def test_data_that_is_not_there(place: Place):
    place.write(work.texts())
    assert "Did you mean rows.jsonl?" in place.fails(place.folder / "row.jsonl")
    assert "there is no file or folder" in place.fails(place.folder / "nothing" / "here")
    (place.folder / "empty").mkdir()
    assert "no file named train, dev or test" in place.fails(place.folder / "empty")
    one = place.write(work.texts(1), "one.jsonl")
    assert "one.jsonl" in place.fails(one)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give DATA or --manifest"),
        (["a.csv", "--resume", "--restart"], "--resume and --restart cannot be combined"),
        (["a.csv", "--epochs", "many"], "--epochs"),
        (["a.csv", "--slots", "0"], "--slots"),
        (["a.csv", "--nonsense"], "--nonsense"),
        (["a.csv", "b.csv"], "b.csv"),
        (["a.csv", "--manifest", "m.toml"], "DATA cannot be combined with --manifest"),
        (["--manifest", "m.toml", "--name", "x"], "--name cannot be combined with --manifest"),
        (["--manifest", "m.toml", "--max-steps", "3"], "--max-steps cannot be combined with --manifest"),
        (["--manifest", "m.toml", "--no-stratify"], "--no-stratify cannot be combined with --manifest"),
        (["--manifest", "m.toml", "--no-dropout"], "--no-dropout cannot be combined with --manifest"),
        (["--manifest", "m.toml", "--skip-bad-rows"], "--skip-bad-rows cannot be combined with --manifest"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_2(place: Place, arguments: list[str], said: str):
    assert said in place.fails(*arguments, code=2)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("sms.csv", "sms"),
        ("reviews/train.csv", "reviews"),
        ("/a/data.jsonl.gz", "a"),
        ("glue/CoLA", "CoLA"),
        ("imdb", "imdb"),
        ("owner/set:config", "set-config"),
        ("mes données.csv", "mes-donn-es"),
        ("数据.csv", "task"),
        ("-.csv", "task"),
        ("x" * 200 + ".csv", "x" * 100),
    ],
)
def test_a_name_from_the_data_is_a_name(data: str, name: str):
    assert data_name(data) == name
    assert inlay.Run(data=data, name=name).name == name


# --- the table ----------------------------------------------------------------------------------------------------


def drawn(width: int, runs: int, name: str = "SMSSpamCollection-and-more") -> list[str]:
    """The table of a training under way, as lines."""
    screen = Console(file=io.StringIO(), width=width, height=24, force_terminal=True)
    progress = Progress(screen, runs, {f"{name}{i}": "f1_weighted" for i in range(runs)})
    for i in range(runs):
        told = {"run": f"{name}{i}", "index": i}
        progress({"event": "begin", "steps": 1200, **told})
        progress({"event": "step", "step": 600, "loss": 0.5, "lr": 1e-3, **told})
        progress({"event": "eval", "step": 600, "loss": 0.5, "metrics": {"accuracy": 1.0, "f1_weighted": 0.25}, **told})
    shown = Console(file=io.StringIO(), width=width, force_terminal=False)
    shown.print(progress.table())
    return shown.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_run_has_one_line(width: int):
    lines = drawn(width, 3)
    assert len(lines) == 2 + 3 + 1
    assert all(len(line) <= width for line in lines)


def test_the_table_has_the_metric_that_decides_and_a_bar():
    line = drawn(80, 1)[2]
    assert "SMSSpamCollection-a…   600/1200   " in line
    assert "f1_weighted 0.2500" in line
    filled, open_ = line.count("━"), line.count("╌")
    assert filled >= 2
    assert open_ - filled in (0, 1)  # half of the way


def test_a_long_table_fits_the_terminal():
    lines = drawn(80, 40)
    assert len(lines) <= 24
    assert any("... and 22 more" in line for line in lines)
    assert "0 of 40 runs ended" in lines[-1]


def test_numbers_for_people():
    assert [clock(s) for s in (0, 65, 3909)] == ["0:00", "1:05", "1:05:09"]
    assert [decimals(v) for v in (0.5, -1e-9, -0.5, float("inf"))] == ["0.5000", "0.0000", "-0.5000", "inf"]


# --- what the other commands know of it ---------------------------------------------------------------------------


def test_columns_that_were_named_are_taken_again(place: Place):
    """Else another column would be guessed, and the adapter judged on texts and labels that are not its own."""
    rows = [
        {"a": one["text"], "text": other["text"], "b": one["label"], "label": other["label"]}
        for one, other in zip(work.texts(24), work.texts(24, seed=1, classes=3), strict=True)
    ]
    data = place.write(rows)
    place.train(data, "--name", "mine", "--text", "a", "--label", "b", *QUICK)
    named = place.call("eval", "mine", data, "--text", "a", "--label", "b", "--json")
    evaluated = place.call("eval", "mine", data, "--json")
    assert json.loads(evaluated.stdout) == json.loads(named.stdout)
    assert "guessed" not in evaluated.stderr
    answers = json.loads(place.call("predict", "mine", "--file", data, "--json").stdout)
    assert [answer["text"] for answer in answers] == [row["a"] for row in rows]
    others = json.loads(place.call("predict", "mine", "--file", data, "--text", "text", "--json").stdout)
    assert [answer["text"] for answer in others] == [row["text"] for row in rows]
    elsewhere = place.write([{"text": row["text"], "label": row["b"]} for row in rows], "other.jsonl")
    assert "guessed" in place.call("eval", "mine", elsewhere, "--json").stderr
