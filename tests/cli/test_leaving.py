"""A head that only Inlay has: it is said when it is trained, and there is a way out."""

from __future__ import annotations

import pytest
import tiny
import torch
import transformers
from training import work
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.errors import AdapterError
from inlay.interop import peft
from inlay.interop.merge import merge
from inlay.library.library import Library
from inlay.runs.prepare import prepare

NOTE = "a head on pool=mean cannot be merged or exported to peft; if you need that, train with --pool pooler"


@pytest.mark.parametrize(
    ("method", "pool", "noted"),
    [
        ("lora:rank=2", "mean", True),
        ("finetune", "mean", True),
        ("lora:rank=2", "pooler", False),
        ("houlsby:size=4", "mean", False),
    ],
)
def test_it_is_said_when_training(method, pool, noted):
    notes = prepare(work.run(method=method, pool=pool), work.host()).notes
    assert (NOTE in notes) == noted


def test_tagging_and_bases_without_such_a_class_have_nothing_to_say():
    assert not any("merged" in note for note in prepare(work.run(work.entities(), "lora:rank=2"), work.host()).notes)
    roberta = tiny.text_host("roberta")
    notes = prepare(work.run(method="lora:rank=2"), roberta).notes
    assert any("train with --pool cls --head tanh2" in note for note in notes)


def host_with() -> inlay.Host:
    host = tiny.text_host("bert")
    host.add("a", "lora:rank=2", labels=["x", "y"], pool="mean")
    tiny.shake(host, "a")
    return host


def test_the_errors_name_both_ways_out(tmp_path):
    host = host_with()
    for go in (
        lambda: peft.write(host.adapter("a"), host.base, tmp_path / "p"),
        lambda: merge(host, "a", tmp_path / "m"),
    ):
        with pytest.raises(AdapterError, match=r"train with --pool pooler.*--without-head"):
            go()


def test_an_export_for_peft_without_the_head_is_the_adapter(tmp_path):
    base = tiny.save_text_model(tmp_path / "base")
    host = inlay.Host(base, device="cpu")
    host.add("a", "lora:rank=2", labels=["x", "y"], pool="mean")
    tiny.shake(host, "a")
    library = Library(tmp_path / "library")
    library.put(host.adapter("a"), "a", base_name=base)
    common = ["library", "export", "a", str(tmp_path / "out"), "--library", str(tmp_path / "library")]
    refused = CliRunner().invoke(app, [*common, "--as", "peft"])
    assert refused.exit_code != 0
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, [*common, "--as", "peft", "--without-head"])
    assert done.exit_code == 0, done.output
    from peft import PeftModel

    theirs = PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(base), str(tmp_path / "out")).eval()
    batch = host.batch(["a good film"])
    with torch.no_grad():
        found = theirs(input_ids=tiny.ids_of(batch).unsqueeze(0)).last_hidden_state[0]
    tiny.assert_close(found, host.hidden(batch, ["a"]).rows()[0])
    assert CliRunner().invoke(app, [*common, "--without-head"]).exit_code != 0
