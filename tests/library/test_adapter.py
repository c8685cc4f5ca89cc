"""An adapter as a file: it comes back as it was, and what is not an adapter is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor

import inlay
from inlay.errors import AdapterError
from inlay.library import tensors as files

CARD = {
    "format": 1,
    "method": "lora",
    "base": "sha256:0",
    "seed": 1,
    "head": "mlp",
    "pool": "mean",
    "labels": ["a"],
    "name": "",
    "task": "",
    "about": {},
}


def tensors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        "single": torch.randn(5, 3, generator=random),
        "half": torch.randn(4, generator=random).bfloat16(),
        "double": torch.randn(2, 2, generator=random).double(),
        "positions#index": torch.tensor([1, 4], dtype=torch.int32),
        "positions#value": torch.tensor([0.5, -0.0]),
        "empty": torch.zeros(0),
    }


def adapter() -> inlay.Adapter:
    return inlay.Adapter(
        "lora:rank=2", "sha256:abc", tensors(), 7, "tanh2", "pooler", ("nein", "ja", "weiß nicht"), "meaning"
    )


def written(path: Path, card: Any, **options: Any) -> Path:
    text = card if isinstance(card, str) else json.dumps(card)
    save_file({"a": torch.zeros(2)}, path, metadata={"inlay": text, **options})
    return path


def assert_same(found: inlay.Adapter, expected: inlay.Adapter) -> None:
    assert replace(found, tensors={}) == replace(expected, tensors={})
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].signbit().tolist() == tensor.signbit().tolist()


# --- there and back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_text", [False, True])
def test_what_is_saved_is_read(tmp_path, as_text):
    path = tmp_path / "a.safetensors"
    assert adapter().save(str(path) if as_text else path) == path
    found = inlay.Adapter.read(str(path) if as_text else path)
    assert_same(found, adapter())
    assert [f.name for f in tmp_path.iterdir()] == ["a.safetensors"]


def test_the_least_an_adapter_can_be(tmp_path):
    least = inlay.Adapter("frozen", "sha256:abc", {"output.mix": torch.zeros(4)})
    found = inlay.Adapter.read(least.save(tmp_path / "a"))
    assert_same(found, least)
    assert (found.seed, found.head, found.pool, found.labels, found.name) == (0, None, "auto", (), "")


def test_the_file_is_plain_safetensors_with_a_card_that_people_can_read(tmp_path):
    path = adapter().save(tmp_path / "a")
    assert load_file(path).keys() == tensors().keys()
    with safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["inlay"])
    assert card == {
        "format": 2,
        "method": "lora:rank=2",
        "full": {"method": "lora:layers=all,mixout=0,mixout_unit=neuron,rank=2,alpha=16,sites=attn.q+attn.v"},
        "base": "sha256:abc",
        "seed": 7,
        "head": "tanh2",
        "pool": "pooler",
        "labels": ["nein", "ja", "weiß nicht"],
        "name": "meaning",
        "task": "",
        "about": {},
    }


def test_views_and_parameters_can_be_saved(tmp_path):
    stack = torch.nn.Parameter(torch.randn(3, 4))
    odd = replace(adapter(), tensors={"column": stack[:, 1], "transposed": stack.T})
    found = inlay.Adapter.read(odd.save(tmp_path / "a")).tensors
    assert torch.equal(found["column"], stack[:, 1])
    assert torch.equal(found["transposed"], stack.T)


def test_the_same_adapter_gives_the_same_bytes(tmp_path):
    first, second = (adapter().save(tmp_path / name).read_bytes() for name in "ab")
    assert first == second


def test_saving_replaces_what_was_there(tmp_path):
    path = tmp_path / "a"
    replace(adapter(), seed=1).save(path)
    replace(adapter(), seed=2).save(path)
    assert inlay.Adapter.read(path).seed == 2


def test_bytes_are_the_file(tmp_path):
    path = adapter().save(tmp_path / "a")
    assert adapter().content() == path.read_bytes()
    assert_same(inlay.Adapter.of(adapter().content(), "here"), adapter())


def test_what_cannot_be_written_is_refused():
    with pytest.raises(AdapterError, match="meaning cannot be written"):
        replace(adapter(), about={"a": object()}).content()
    with pytest.raises(AdapterError, match=r"meaning cannot be written: tensors of torch\.complex64"):
        replace(adapter(), tensors={"x": torch.zeros(2, dtype=torch.complex64)}).content()


def test_tensors_that_share_memory_are_each_written():
    stack = torch.arange(4.0)
    both = replace(adapter(), tensors={"a": stack, "b": stack})
    assert_same(inlay.Adapter.of(both.content(), "here"), both)


# --- half the bytes ---------------------------------------------------------------------------------------------


def test_in_half_precision_and_back(tmp_path):
    half = adapter().to("float16")
    floating = {name for name, tensor in tensors().items() if tensor.is_floating_point()}
    assert {name for name, tensor in half.tensors.items() if tensor.dtype == torch.float16} == floating
    assert torch.equal(half.tensors["positions#index"], tensors()["positions#index"])
    assert replace(half, tensors={}) == replace(adapter(), tensors={})
    found = inlay.Adapter.read(half.save(tmp_path / "a"))
    assert_same(found, half)
    whole = found.to("float32")
    assert whole.tensors["single"].dtype == torch.float32
    assert torch.allclose(whole.tensors["single"], tensors()["single"], rtol=1e-3)
    assert_same(whole.to("float16"), half)


def test_half_precision_halves_the_file():
    big = replace(adapter(), tensors={"a": torch.zeros(10_000)})
    assert len(big.to("float16").content()) < 0.55 * len(big.content())


@pytest.mark.parametrize("number", [65520.0, -1e5, 3e38])
def test_numbers_that_half_precision_cannot_hold_are_an_error(number):
    large = replace(adapter(), tensors={"fine": torch.ones(2), "up": torch.tensor([1.0, number])})
    with pytest.raises(AdapterError) as caught:
        large.to("float16")
    for part in ("meaning", "float16", "up has numbers up to", f"{abs(number):g}", "65504 is the largest"):
        assert part in str(caught.value)
    with pytest.raises(AdapterError, match="float32"):
        replace(large, tensors={"up": torch.tensor([1e300], dtype=torch.float64)}).to("float32")


def test_the_largest_and_the_smallest_that_half_precision_holds():
    edge = replace(adapter(), tensors={"a": torch.tensor([65504.0, -65504.0, 1e-30, float("inf")])})
    assert edge.to("float16").tensors["a"].tolist() == [65504.0, -65504.0, 0.0, float("inf")]


@pytest.mark.parametrize("dtype", ["float61", "int8", "float64", "bfloat16", ""])
def test_other_types_are_refused(dtype):
    with pytest.raises(AdapterError, match="Valid: float16, float32"):
        adapter().to(dtype)


# --- atomic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("existing", [True, False])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, existing):
    path = tmp_path / "a"
    if existing:
        adapter().save(path)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AdapterError, match="the disk is full"):
        replace(adapter(), seed=9).save(path)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_a_file_appears_under_its_name_only_when_it_is_whole(tmp_path, monkeypatch):
    seen: list[bool] = []

    def watching(handle: int) -> None:
        seen.append((tmp_path / "a").exists())

    monkeypatch.setattr("os.fsync", watching)
    adapter().save(tmp_path / "a")
    assert seen == [False, True], "before the file is synced, and before its folder is"
    assert_same(inlay.Adapter.read(tmp_path / "a"), adapter())


def test_saving_into_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(AdapterError, match="nowhere"):
        adapter().save(tmp_path / "nowhere" / "a")


# --- what is not an adapter ---------------------------------------------------------------------------------


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(AdapterError) as caught:
        inlay.Adapter.read(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_a_missing_file(tmp_path):
    refused(tmp_path / "nowhere", "No such file")


def test_a_folder(tmp_path):
    refused(tmp_path)


def test_someone_elses_safetensors_file(tmp_path):
    for name, metadata in (("plain", None), ("peft", {"format": "pt"})):
        save_file({"a": torch.zeros(2)}, tmp_path / name, metadata=metadata)
        refused(tmp_path / name, "not one of Inlay's")


@pytest.mark.parametrize("text", ["", "hello, I am not an adapter", '{"json": true}' * 9, "\x00" * 64])
def test_some_other_file(tmp_path, text):
    (tmp_path / "a").write_text(text)
    refused(tmp_path / "a", "is not an adapter")


@pytest.mark.parametrize("keep", [1, 7, 8, 100, -1])
def test_a_truncated_file(tmp_path, keep):
    path = adapter().save(tmp_path / "a")
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "is not an adapter")


def test_a_good_card_is_read(tmp_path):
    """So that the damage below is what is refused."""
    found = inlay.Adapter.read(written(tmp_path / "a", CARD, format="pt"))
    assert (found.method, found.labels, found.seed) == ("lora", ("a",), 1)


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_another_format_number(tmp_path, version):
    refused(written(tmp_path / "a", {**CARD, "format": version}), f"format {version}", "reads 1")


def test_a_card_without_a_format_number(tmp_path):
    refused(written(tmp_path / "a", {k: v for k, v in CARD.items() if k != "format"}), "format")


@pytest.mark.parametrize("key", [k for k in CARD if k != "format"])
def test_a_card_without_one_of_its_fields_names_them(tmp_path, key):
    refused(written(tmp_path / "a", {k: v for k, v in CARD.items() if k != key}), "damaged card", f"'{key}'")


def test_a_card_with_a_field_too_many_names_it(tmp_path):
    refused(written(tmp_path / "a", {**CARD, "colour": "red"}), "damaged card", "'colour'")


@pytest.mark.parametrize("text", ["", "{", "not json", "[]", "null", "3", '"text"'])
def test_a_card_that_is_not_a_json_object(tmp_path, text):
    refused(written(tmp_path / "a", text), "damaged card")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("labels", None),
        ("labels", "ab"),
        ("labels", [1, 2]),
        ("labels", 2),
        ("method", None),
        ("method", 3),
        ("base", None),
        ("seed", "x"),
        ("seed", None),
        ("head", 1),
        ("pool", None),
        ("name", None),
    ],
)
def test_a_card_whose_field_is_of_another_kind_names_it(tmp_path, key, value):
    refused(written(tmp_path / "a", {**CARD, key: value}), "damaged card", key)


# --- the bytes of a file ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [{}, {"inlay": '{"name": "gr\u00fc\u00df \\u00fc\x01\n"}'}])
def test_a_file_is_to_the_byte_what_safetensors_writes(metadata):
    shapes = [(), (0,), (3,), (2, 0, 4), (2, 3)]
    random = torch.Generator().manual_seed(0)
    found = {
        f'{name}{i}/\x7f\u00e9"{shape}': torch.randint(0, 2, shape, generator=random).to(dtype)
        for i, dtype in enumerate(files._TYPES)
        for name, shape in zip("zaZ_b", shapes, strict=True)
    }
    assert files.written(found, metadata) == save(found, metadata or None)
    turned = torch.arange(12.0, requires_grad=True).view(3, 4).t()
    assert files.written({"turned": turned}, metadata) == save({"turned": turned.contiguous()}, metadata or None)
    assert files.written({"some": turned[0]}, metadata) == save({"some": turned[0].contiguous()}, metadata or None)
    assert files.written({}, metadata) == save({}, metadata or None)
