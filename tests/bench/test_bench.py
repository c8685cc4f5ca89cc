"""`inlay bench`: what it writes, lengths, the protocol, and peers that do well, die, lie or hang."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import typer
from typer.testing import CliRunner

from inlay.bank.delta import parse
from inlay.bench import peers
from inlay.bench.measure import BARE, OURS, Party, interleave, quartiles, ratios, summary
from inlay.bench.peers import Peer, PeerError, Worker, method_for
from inlay.bench.rows import draw_lengths, draw_rows, lengths_of
from inlay.bench.work import BARE_METHOD, Settings, compare
from inlay.cli import bench
from inlay.cli.help import Commands
from inlay.errors import RunError

SMALL = [
    "--batch-size",
    "3",
    "--repeats",
    "2",
    "--steps",
    "2",
    "--warmup-steps",
    "1",
    "--lengths",
    "short",
    "--device",
    "cpu",
]
SCRIPTS = Path(__file__).parents[2] / "bench" / "peers"

FAKE = """
import json, sys, time
for line in sys.stdin:
    ask = json.loads(line)
    {before}
    if ask["op"] == "outputs":
        from safetensors.torch import load_file, save_file
        {outputs}
        answer = {{"rows": 0}}
    elif ask["op"] == "setup":
        assert len(json.load(open(ask["rows_file"]))) >= ask["rows"] * ask["steps"]
        settings = {{"grouped": True, "precision": "fp32", "compile": False, "ms": 40.0}}
        answer = {{"versions": {{"fake": "1"}}, "settings": settings, "tried": [settings], "got": ask}}
    else:
        answer = {{"ms": {ms}}}
    print(json.dumps(answer), flush=True)
"""
RIGHT = """
        import inlay, torch
        host = inlay.Host(FOLDER)
        names = NAMES
        for name in dict.fromkeys(names):
            host.add(name, METHOD)
            given = {k.partition("/")[2]: v for k, v in load_file(ask["tensors"]).items() if k.startswith(name + "/")}
            host.write(name, given)
        rows = json.load(open(ask["rows_file"]))
        with torch.inference_mode():
            states = host.hidden(inlay.Batch.of(rows), names, packed=False).rows()
        save_file({str(i): one.contiguous() for i, one in enumerate(states)}, ask["out"])
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    return tiny.save_text_model(tmp_path / "base")


def fake(folder: Path, *, before: str = "pass", outputs: str = "pass", ms: str = "40.0") -> str:
    """A folder with a worker that has the answers written in it."""
    folder.mkdir(exist_ok=True)
    for name in ("peft", "adapters"):
        (folder / f"{name}_worker.py").write_text(FAKE.format(before=before, outputs=outputs, ms=ms))
    return str(folder)


def right(base: str, names: list[str], method: str) -> str:
    """Outputs as they should be, from padded rows."""
    text = RIGHT.replace("FOLDER", repr(base)).replace("NAMES", repr(names)).replace("METHOD", repr(method))
    return text.strip()


app = typer.Typer(cls=Commands)
app.add_typer(bench.app, name="bench")


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "120"})


def settings(base: str, work: Any = "mixed", **changes: Any) -> Settings:
    small: dict[str, Any] = {"rows": 4, "repeats": 2, "steps": 2, "warmup": 1, "lengths": "short", "device": "cpu"}
    return Settings(work, base=base, **{"method": "lora", **small, **changes})


@pytest.mark.parametrize(
    ("command", "own"),
    [
        (["train", "--method", "houlsby:size=4", "--runs", "2"], {"runs": 2, "method": "houlsby:size=4"}),
        (["serve", "--method", "adapterbias"], {"rows": 3, "tasks": 1, "loaded": 1}),
        (["mixed", "--task-count", "2", "--loaded", "5"], {"tasks": 2, "loaded": 5, "method": "lora"}),
    ],
)
def test_the_document(command: list[str], own: dict[str, Any], base: str, tmp_path: Path):
    file = tmp_path / "found.json"
    done = call(*command, *SMALL, "--base", base, "--out", str(file))
    assert done.exit_code == 0, done.output
    (found,) = json.loads(file.read_text())
    assert set(found) == {"settings", "machine", "tokens_per_row", "parties", "ratios", "notes"}
    assert found["settings"].items() >= {"work": command[0], "base": base, "device": "cpu", "repeats": 2, **own}.items()
    assert found["machine"]["device"]
    assert found["machine"]["threads"] == found["settings"]["threads"] >= 1
    assert set(found["machine"]["versions"]) == {"inlay", "python", "torch", "transformers"}
    assert list(found["parties"]) == [OURS, BARE]
    for one in found["parties"].values():
        assert len(one["ms"]) == 2
        assert min(one["ms"]) > 0
        assert one["quartiles_ms"][0] <= one["cost_ms"] <= one["quartiles_ms"][1]
    cost = {name: one["cost_ms"] for name, one in found["parties"].items()}
    assert found["ratios"] == {BARE: pytest.approx(cost[BARE] / cost[OURS])}
    assert found["notes"] == [f"{name} is left out: pass --{name}-python" for name in ("peft", "adapters")]
    assert all(note in done.output for note in found["notes"])
    assert 5 <= found["tokens_per_row"] <= 16


@pytest.mark.parametrize("command", ["serve", "mixed"])
def test_int8(command: str, base: str, tmp_path: Path):
    file = tmp_path / "found.json"
    done = call(command, "--method", "lora", *SMALL, "--base", base, "--weights", "int8", "--out", str(file))
    assert done.exit_code == 0, done.output
    (found,) = json.loads(file.read_text())
    assert found["settings"]["weights"] == "int8"
    assert "threads), int8" in " ".join(done.output.split())


def test_several_sizes_are_several_results(base: str, tmp_path: Path):
    file = tmp_path / "found.json"
    small = [*SMALL[2:], "--batch-size", "4", "--base", base]
    done = call("mixed", "--task-count", "1,2", "--loaded", "1,3", *small, "--out", str(file))
    assert done.exit_code == 0, done.output
    sizes = [(one["settings"]["tasks"], one["settings"]["loaded"]) for one in json.loads(file.read_text())]
    assert sizes == [(1, 1), (1, 3), (1, 1), (2, 3)]  # no more tasks than are loaded


def test_training_takes_the_steps_it_says(base: str, monkeypatch: pytest.MonkeyPatch):
    from inlay.training import loop

    taken: dict[str, int] = {}
    note = loop._note_loss

    def count(loss: float, step: int, job: Any) -> None:
        taken[job.data.run.method] = taken.get(job.data.run.method, 0) + 1
        note(loss, step, job)

    monkeypatch.setattr(loop, "_note_loss", count)
    compare(settings(base, "train", runs=3, repeats=2, steps=2, warmup=1))
    assert taken == {
        "lora": 3 * (1 + 3 * 2),
        BARE_METHOD: 3 * (1 + 3 * 2),
    }  # warm-up, a round to settle, two that count


def test_a_peer_is_asked_checked_and_timed(base: str, tmp_path: Path):
    names = ["t0", "t0", "t2", "t2"]  # two tasks, spread over four
    outputs = right(base, names, "lora:rank=4,alpha=8")
    workers = fake(tmp_path / "workers", outputs=outputs, ms="1000.0")
    peer = Peer("peft", sys.executable, workers=workers)
    found = compare(settings(base, method="lora:rank=4,alpha=8", tasks=2, loaded=4, threads=1), [peer])
    theirs = found["parties"]["peft"]
    assert "problem" not in theirs, theirs
    assert theirs["ms"] == [1000.0, 1000.0]
    assert theirs["difference"] < 1e-4
    assert theirs["versions"] == {"fake": "1"}
    asked = theirs["got"]
    assert asked["names"] == names
    assert asked["method"] == {"kind": "lora", "rank": 4, "alpha": 8.0}
    assert (asked["work"], asked["loaded"], asked["threads"], asked["settings"]) == ("mixed", 4, 1, "best")
    assert found["ratios"]["peft"] == pytest.approx(1000 / found["parties"][OURS]["cost_ms"])
    assert list(found["parties"]) == [OURS, "peft", BARE]
    assert found["notes"] == ["adapters is left out: pass --adapters-python"]


@pytest.mark.full
def test_a_peer_pays_for_every_run(base: str, tmp_path: Path):
    workers = fake(tmp_path / "workers", outputs=right(base, ["t0"] * 4, "houlsby:size=4"), ms="100.0")
    peer = Peer("adapters", sys.executable, workers=workers)
    found = compare(settings(base, "train", method="houlsby:size=4", runs=3), [peer])
    theirs = found["parties"]["adapters"]
    assert "problem" not in theirs, theirs
    assert (theirs["ms"], theirs["share"], theirs["cost_ms"]) == ([100.0, 100.0], 3, 300.0)
    assert found["ratios"]["adapters"] == pytest.approx(300 / found["parties"][OURS]["cost_ms"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"before": "sys.exit('no such model')"}, "died in setup: no such model"),
        (
            {"before": "print(json.dumps({'error': 'out of luck'}), flush=True); continue"},
            "failed in setup: out of luck",
        ),
        ({"before": "print('hello', flush=True); continue"}, "answered 'hello', which is not a JSON object"),
        ({"before": "ask['op'] == 'run' and sys.exit(3)"}, "died in run: exit code 3, and no message"),
    ],
)
def test_a_peer_that_fails_is_reported(how: dict[str, str], said: str, base: str, tmp_path: Path):
    workers = fake(tmp_path / "workers", outputs=right(base, ["t0"] * 4, "lora"), **how)
    command = ["serve", "--method", "lora", "--batch-size", "4", *SMALL[2:], "--base", base, "--peer-scripts", workers]
    done = call(*command, "--peft-python", sys.executable, "--out", str(tmp_path / "found.json"))
    assert done.exit_code == 0, done.output
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert said in found["parties"]["peft"]["problem"]
    assert f"peft is left out: it {said}" in found["notes"]
    assert "peft" not in found["ratios"]
    assert said in " ".join(done.output.split())


@pytest.mark.full
def test_a_peer_that_dies_on_the_way_keeps_its_times(base: str, tmp_path: Path):
    dies = "FILE = sys.argv[0] + '.runs'; open(FILE, 'a').write(ask['op'] + ' '); "
    dies += "open(FILE).read().count('run') > 2 and sys.exit('gone')"
    workers = fake(tmp_path / "workers", before=dies, outputs=right(base, ["t0"] * 4, "lora"))
    found = compare(settings(base, "serve"), [Peer("peft", sys.executable, workers=workers)])
    assert found["parties"]["peft"]["ms"] == [40.0]
    assert found["notes"][-1] == "peft stopped after 1 of 2 blocks: it died in run: gone"


def test_a_peer_with_other_outputs_is_not_timed(base: str, tmp_path: Path):
    wrong = right(base, ["t0", "t0", "t1", "t0"], "lora")  # one row goes to the wrong adapter
    peer = Peer("peft", sys.executable, workers=fake(tmp_path / "workers", outputs=wrong))
    found = compare(settings(base, tasks=2, loaded=2), [peer])
    assert found["parties"]["peft"]["ms"] == []
    assert "gives other hidden states" in found["parties"]["peft"]["problem"]


def test_a_peer_that_hangs_is_given_up(tmp_path: Path):
    worker = Worker(Peer("peft", sys.executable, workers=fake(tmp_path, before="time.sleep(60)")), seconds=0.2)
    try:
        with pytest.raises(PeerError, match="no answer to run within 0 s"):
            worker.ask(op="run")
    finally:
        worker.close()


def test_a_peer_that_closes_its_output_and_goes_on_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "EXIT_SECONDS", 0.1)
    hangs = "__import__('os').close(1); time.sleep(60)"
    worker = Worker(Peer("peft", sys.executable, workers=fake(tmp_path, before=hangs)))
    try:
        with pytest.raises(PeerError, match="died in run: it closed its output without a message"):
            worker.ask(op="run")
    finally:
        worker.close()


def test_what_peers_have():
    assert method_for("adapters", parse("houlsby:size=32")) == {"kind": "houlsby", "size": 32, "activation": "gelu"}
    assert method_for("peft", parse("lora")) == {"kind": "lora", "rank": 8, "alpha": 16.0}
    for peer, spec in (("peft", "houlsby"), ("adapters", "houlsby:parallel=true"), ("peft", "lora:sites=attn.k")):
        with pytest.raises(PeerError, match="has no "):
            method_for(peer, parse(spec))


@pytest.mark.parametrize("name", ["peft", "adapters"])
def test_the_scripts_are_where_the_command_looks(name: str):
    assert Peer(name, "python").command() == ["python", str(SCRIPTS / f"{name}_worker.py")]


def test_the_lengths_are_like_glue():
    found = draw_lengths("glue", 20_000, seed=0)
    assert (min(found), max(found)) == (5, 128)
    assert statistics.median(found) == pytest.approx(28, abs=1)
    assert statistics.mean(found) == pytest.approx(31.7, abs=0.7)  # 28 exp(0.5² / 2)
    assert found == draw_lengths("glue", 20_000, seed=0) != draw_lengths("glue", 20_000, seed=1)
    short = draw_lengths("short", 2000, seed=0)
    assert set(short) == set(range(5, 17))
    with pytest.raises(RunError, match="Did you mean glue"):
        draw_lengths("gleu", 1, 0)


def test_lengths_of_a_file(tmp_path: Path):
    file = tmp_path / "some.csv"
    file.write_text("text,label\na good film,1\nnot bad at all and very fine,0\nsoup,1\n")
    lengths = lengths_of(str(file), "text", tiny.tokenizer(), 6, seed=0)
    expected = sorted(
        len(tiny.tokenizer()(text)["input_ids"]) for text in ("a good film", "not bad at all and very fine", "soup")
    )
    assert sorted(lengths[:3]) == sorted(lengths[3:]) == expected


def test_lengths_of_two_columns_and_of_rows_without_a_text(tmp_path: Path):
    file = tmp_path / "some.csv"
    file.write_text("subject,body\na good film,soup\n,\n")
    lengths = lengths_of(str(file), "subject,body", tiny.tokenizer(), 2, seed=0)
    assert lengths == [len(tiny.tokenizer()("a good film soup")["input_ids"])] * 2


def test_rows_have_their_lengths_and_no_special_tokens():
    rows = draw_rows([5, 9, 200], vocabulary=60, seed=0, longest=40)
    assert [len(row) for row in rows] == [5, 9, 40]
    assert all(30 <= token < 60 for row in rows for token in row)


def test_everyone_takes_turns_and_the_first_round_does_not_count():
    order: list[str] = []

    def party(name: str, fails: int | None = None) -> Party:
        def run() -> float:
            order.append(name)
            if fails is not None and order.count(name) > fails:
                raise PeerError("stopped")
            return float(order.count(name))

        return Party(name, run, share=2)

    parties = [party("a"), party("b", fails=2), party("c")]
    interleave(parties, 3)
    assert order == list("abcabcabcac")
    assert [one.times for one in parties] == [[2, 3, 4], [2], [2, 3, 4]]
    assert [one.problem for one in parties] == ["", "stopped", ""]
    assert summary(parties[0])["cost_ms"] == 6
    assert quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)
    assert ratios({OURS: {"cost_ms": 4.0}, "peft": {"cost_ms": 10.0}, "adapters": {}}) == {"peft": 2.5}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--runs", "none"], "--runs: 'none' is not valid: expected numbers from 1"),
        (["serve", "--batch-size", "0,1"], "--batch-size: '0,1' is not valid"),
        (["serve", "--peft-path", "somewhere"], "--peft-path needs --peft-python"),
        (["train", "--shape", "bert-bose"], "--shape: unknown shape 'bert-bose'. Did you mean bert-base"),
        (["train", "--method", "hulsby"], "--method: unknown method 'hulsby'. Did you mean houlsby"),
        (["train", "--method", "houlsby:size=abc"], "--method: houlsby: size=abc is not valid"),
        (["mixed", "--steps", "0"], "--steps: "),
        (["serve", "--lengths", "gleu"], "--lengths: unknown kind of lengths 'gleu'. Did you mean glue"),
        (["serve", "--peer-settings", "fast"], "--peer-settings: "),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], said: str):
    done = call(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--peft-python", "python", "--peer-scripts", "nowhere"], "there is no nowhere/peft_worker.py"),
        (["serve", "--data", "nowhere.csv"], "nowhere.csv: there is no such file"),
        (["serve", "--out", "no/where.json"], "no/where.json cannot be written: there is no folder no"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str):
    done = call(*arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_json_goes_to_stdout(base: str):
    done = call("serve", "--method", "lora", *SMALL, "--base", base, "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert found["settings"]["work"] == "serve"
    assert "a batch of 3 rows of one task" in done.stderr


def test_an_interpreter_that_is_not_there(base: str):
    done = call("serve", *SMALL, "--base", base, "--method", "lora", "--peft-python", "/nowhere/python")
    assert done.exit_code == 1
    assert "cannot start peft with /nowhere/python: No such file" in done.stderr


def test_batches_of_like_length(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import peer

    lengths = draw_lengths("glue", 50 * 8, seed=0)
    plain, sorted_ = peer.as_they_come(lengths, 8), peer.grouped(lengths, 8)
    assert sorted(i for some in sorted_ for i in some) == sorted(i for some in plain for i in some) == list(range(400))

    def padded(batches: list[list[int]]) -> int:
        return sum(8 * max(lengths[i] for i in some) for some in batches)

    assert padded(sorted_) < 1.1 * sum(lengths) < padded(plain)

    for steps in (1, 3, 10):
        blocks = peer.deal(sizes := [max(lengths[i] for i in some) for some in sorted_], steps)
        dealt = [i for block in blocks for i in block]
        assert len(set(dealt)) == len(dealt) == 50 // steps * steps
        assert {len(block) for block in blocks} == {steps}
    of_block = [sum(sizes[i] for i in block) for block in blocks]
    assert max(of_block) < 1.05 * min(of_block)
