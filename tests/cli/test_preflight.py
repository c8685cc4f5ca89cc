"""What is wrong is said before torch is imported: names, files, columns, libraries, keys, methods.

All cases run in one process, where an import of torch fails a case by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny

import inlay
from inlay.library.library import Library

PROBE = """
import io, json, sys, contextlib
from inlay.cli import main
found = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main.app(words, prog_name="inlay", standalone_mode=True)
        except SystemExit as end:
            code = end.code
    heavy = [name for name in ("torch", "transformers") if name in sys.modules]
    found.append([words, code, err.getvalue(), heavy])
print(json.dumps(found))
"""


def probe(cases: list[list[str]], library: Path) -> list[tuple[list[str], int, str, list[str]]]:
    environment = {**os.environ, "INLAY_LIBRARY": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(cases)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("early")
    host, library = inlay.Host(tiny.save_text_model(root / "base")), Library(root / "library")
    for name, task in (("sms", "classification"), ("ask", "qa"), ("tone", "classification")):
        host.add(name, "adapterbias", task=task, labels=["a", "b"])
        library.put(host.adapter(name), base_name=str(root / "base"))
    (root / "in.csv").write_text("text,label\nyou love,a\nthe film,b\n" * 9)
    return root


def test_mistakes_are_told_before_torch_is_imported(place: Path):
    file, none = str(place / "in.csv"), str(place / "none")
    cases = {
        ("predict", "smss", "hi"): "Did you mean sms",
        ("predict", "sms@7", "hi"): "sms has no version '7'",
        ("predict", "sms", "hi", "--library", none): "there is no such folder",
        ("predict", "sms", "hi", "--base", none): "there is no folder",
        ("predict", "sms"): "stdin: no texts",
        ("predict", "ask", "who ?"): "pass that text with --pair",
        ("predict", "sms", "--file", none): "there is no such file",
        ("predict", "sms", "--file", file, "--text", "txt"): "no column 'txt' (--text). Did you mean text",
        ("predict", "sms", "--file", file, "--keep", "labl"): "no column 'labl' (--keep). Did you mean label",
        ("predict", "sms", "--file", file, "--format", "cvs"): "unknown format 'cvs'. Did you mean csv",
        ("predict", "sms", "hi", "--out", "a.txt"): "must end with",
        ("predict", "ask", "who ?", "--pair", "x", "--top-k", "2"): "--top-k",
        ("eval", "smss", file): "Did you mean sms",
        ("eval", "sms", none + ".csv"): "there is no such file",
        ("eval", "sms", file, "--label", "labl"): "no column 'labl' (--label). Did you mean label",
        ("eval", "ask", file): "no column looks like",
        ("eval", "sms", file, "--split", "test"): "has no split 'test'",
        ("eval", "sms", file, "--library", none): "there is no such folder",
        ("eval", "sms", file, "--base", none): "there is no folder",
        ("serve", "--key-file", none): "the key file",
        ("serve", "--library", none): "there is no such folder",
        ("serve", "--tasks", "smss"): "Did you mean sms",
        ("serve", "--base", none): "there is no folder",
        ("library", "list", "--library", none): "there is no such folder",
        ("library", "show", "smss"): "Did you mean sms",
        ("library", "diff", "sms", "smss"): "Did you mean sms",
        ("library", "export", "smss", none): "Did you mean sms",
        ("library", "export", "sms", none, "--as", "pefd"): "pefd",
        ("library", "export", "sms", none, "--as", "peft", "--base", none): "there is no folder",
        ("export", "onnx", "--tasks", "sms,smss", "--out", "a.onnx"): "Did you mean sms",
        ("export", "onnx", "--tasks", "sms", "--out", "a.onnx", "--base", none): "there is no folder",
        ("export", "merged", "smss", "--out", none): "Did you mean sms",
        ("analyze", "alpha", "smss"): "Did you mean sms",
        ("analyze", "words", "sms", none + ".csv"): "there is no such file",
        ("analyze", "words", "sms"): "does not say what it was trained on",
        ("analyze", "landscape", "sms,smss", file): "Did you mean sms",
        ("analyze", "ablation", "ask", file): "no column looks like",
        ("report", "smss"): "Did you mean sms",
        ("report", "sms", none + ".csv"): "there is no such file",
        ("report", "sms", "toen", "--compare"): "Did you mean tone",
        ("info", "hulsby"): "Did you mean houlsby",
        ("info", "taging"): "Did you mean tagging",
        ("plan", "--task-count", "10", "--method", "hulsby"): "Did you mean houlsby",
        ("plan", "--task-count", "10", "--base", none): "there is no folder",
        ("plan", "--task-count", "10", "--shape", "bert-bose"): "Did you mean bert-base",
        ("params", "--shape", "bert-bose"): "Did you mean bert-base",
        ("params", "--method", "hulsby"): "Did you mean houlsby",
        ("params", "--method", "lora:rank=4,bitfitt"): "bitfitt",
    }
    folder = str(place)
    for words in (
        ("bench", "serve", "--out"),
        ("sweep", file, "--grid", "lr=1e-3", "--csv"),
        ("compare", file, "--latex"),
    ):
        cases[(*words, folder)] = f"{folder} cannot be written: it is a folder"
    said = "must end with .png, .pdf or .svg" if find_spec("matplotlib") else "a picture needs matplotlib"
    cases |= {("sweep", file, "--grid", "lr=1e-3", "--plot", "a.pgn"): said, ("compare", file, "--plot", "a"): said}
    for words, code, said, heavy in probe([list(words) for words in cases], place / "library"):
        assert code in (1, 2), (words, said)
        assert cases[tuple(words)] in " ".join(said.split()), (words, said)
        assert "Traceback" not in said
        assert heavy == [], words


def test_options_of_specs_are_told_before_a_base_is_loaded(place: Path):
    cases = {
        ("params", "--method", "houlsby:siz=3"): "Did you mean size",
        ("plan", "--task-count", "10", "--method", "houlsby:siz=3", "--shape", "bert-base"): "Did you mean size",
    }
    for words, code, said, heavy in probe([list(words) for words in cases], place / "library"):
        assert code == 2
        assert cases[tuple(words)] in " ".join(said.split())
        assert "torch" in heavy  # the check above can fail
        assert "transformers" not in heavy, words
