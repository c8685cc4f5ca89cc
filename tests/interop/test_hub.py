"""Pushing to the hub and pulling from it, through huggingface_hub, against a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from interop.fake_hub import TOKEN, FakeHub
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.errors import AdapterError, DamagedError, LibraryError
from inlay.interop import exported, hub
from inlay.library.adapter import Adapter
from inlay.library.library import Library

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own uploads
REPO = "ana/sms"
CARD = {"base_name": "owner/base", "base_parameters": 1000, "metric": "f1", "metrics": {"validation": {"f1": 0.5}}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    made = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    yield made
    huggingface_hub.close_session()
    made.close()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    made = Library(tmp_path / "library")
    random = torch.Generator().manual_seed(0)
    tensors = {"layers.0.ffn.out.v": torch.randn(64, generator=random), "head.bias": torch.zeros(2)}
    adapter = Adapter("adapterbias", "sha256:" + "a" * 64, tensors, 3, "linear", "mean", ("ham", "spam"), "sms")
    made.put(replace(adapter, task="classification"), parents=["sms-old@1"], **CARD)
    return made


def push(library: Library, repo: str = REPO, **options: Any) -> hub.Place:
    return hub.push(exported.files(library, "sms", repo=repo), repo, **options)


def test_what_is_pushed_comes_back_the_same(server: FakeHub, library: Library, tmp_path: Path):
    place = push(library, message="a message")
    assert place.commit == server.repos[REPO].head
    assert place.url == f"{server.url}/{REPO}"
    files, same = hub.pull(REPO)
    assert same == place
    other = Library(tmp_path / "other")
    entry = exported.adopt(other, files, f"{REPO}@{same.commit}")
    assert other.blob(entry) == library.blob(library.find("sms"))
    assert (entry.ref, entry.parents) == ("sms@1", ["sms-old@1"])
    assert {key: entry.card[key] for key in CARD} == CARD
    assert entry.card["source"] == f"{REPO}@{place.commit}"
    assert other.verify() == []


def test_a_repo_holds_three_files_and_the_large_one_is_stored_as_such(server: FakeHub, library: Library):
    push(library)
    files = server.repos[REPO].commits[server.repos[REPO].head]
    assert set(files) == {".gitattributes", "adapter.safetensors", "card.json", "README.md"}
    assert list(server.objects.values()) == [files["adapter.safetensors"]]
    assert f"inlay library pull {REPO}" in files["README.md"].decode()
    assert [line.partition(" /")[0] for line in server.requests if "/commit/" in line] == ["POST"]


def test_only_the_card_and_the_adapter_are_downloaded(server: FakeHub, library: Library):
    push(library)
    server.add(REPO, {**server.repos[REPO].commits[server.repos[REPO].head], "evil.py": b"print('run me')"})
    server.requests.clear()
    hub.pull(REPO)
    got = {line.split("/")[-1] for line in server.requests if line.startswith("GET") and "/resolve/" in line}
    assert got == {"card.json", "adapter.safetensors"}


def test_a_revision_stays_what_it_was(server: FakeHub, library: Library):
    first = push(library)
    adapter = library.get("sms")
    library.put(replace(adapter, tensors={**adapter.tensors, "head.bias": torch.ones(2)}), **CARD)
    second = push(library)
    assert first.commit != second.commit
    old, new = hub.pull(REPO, revision=first.commit)[0], hub.pull(REPO)[0]
    assert exported.check(old, REPO)[1].version == 1
    assert exported.check(new, REPO)[1].version == 2
    with pytest.raises(LibraryError, match=r"ana/sms has no revision 'v9'"):
        hub.pull(REPO, revision="v9")


def test_files_of_one_commit_are_read_although_main_moves(
    server: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch
):
    push(library)
    before = hub._download

    def moving(api: Any, repo: str, name: str, commit: str, folder: str) -> bytes:
        server.add(REPO, {"card.json": b"{}", "adapter.safetensors": b"other"})
        return before(api, repo, name, commit, folder)

    monkeypatch.setattr(hub, "_download", moving)
    exported.check(hub.pull(REPO)[0], REPO)


def changed(server: FakeHub, **changes: bytes) -> None:
    names = {"weights": "adapter.safetensors", "card": "card.json"}
    server.add(
        REPO, {**server.repos[REPO].commits[server.repos[REPO].head], **{names[k]: v for k, v in changes.items()}}
    )


def test_what_does_not_fit_together_is_refused(server: FakeHub, library: Library, tmp_path: Path):
    push(library)
    files = dict(server.repos[REPO].commits[server.repos[REPO].head])
    weights, card = files["adapter.safetensors"], json.loads(files["card.json"])
    flipped = bytearray(weights)
    flipped[-1] ^= 1
    other = Library(tmp_path / "other")
    cases: list[tuple[dict[str, bytes], str]] = [
        ({"weights": bytes(flipped)}, "is not the file that its card was written for"),
        ({"weights": weights[:-8]}, "is not the file that its card was written for"),
        ({"card": json.dumps({**card, "labels": ["spam", "ham"]}).encode()}, "was changed after it was written"),
        ({"card": b"[" * 100_000}, "is not a card"),
        ({"card": b"\x80\x04pickle"}, "is not a card"),
        ({"card": b'{"name": "../../x", "version": 1}'}, "is not a card"),
    ]
    for changes, message in cases:
        server.add(REPO, files)
        changed(server, **changes)
        with pytest.raises(DamagedError, match=message):
            exported.adopt(other, hub.pull(REPO)[0], REPO)
    assert other.list() == []
    server.add(REPO, files)
    assert exported.adopt(other, hub.pull(REPO)[0], REPO).ref == "sms@1"  # the control


def test_a_card_that_was_signed_again_is_held_against_the_file(server: FakeHub, library: Library):
    from inlay.library import cards

    push(library)
    card = json.loads(server.repos[REPO].commits[server.repos[REPO].head]["card.json"])
    card = {key: value for key, value in card.items() if key not in ("name", "version", "digest")}
    changed(server, card=cards.encode({**card, "labels": ["spam", "ham"]}, "sms", 1))
    with pytest.raises(DamagedError, match="labels is"):
        exported.check(hub.pull(REPO)[0], REPO)


def test_a_pickle_in_disguise_is_not_opened(server: FakeHub, library: Library):
    import hashlib

    from inlay.library import cards

    push(library)
    weights = b"\x80\x04cos\nsystem\n"
    card = json.loads(server.repos[REPO].commits[server.repos[REPO].head]["card.json"])
    card = {key: value for key, value in card.items() if key not in ("name", "version", "digest")}
    card |= {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)}
    changed(server, weights=weights, card=cards.encode(card, "sms", 1))
    with pytest.raises(AdapterError, match="pickle"):
        exported.check(hub.pull(REPO)[0], REPO)


def test_what_is_too_large_is_not_downloaded(server: FakeHub, library: Library):
    push(library)
    server.requests.clear()
    with pytest.raises(LibraryError, match=r"adapter\.safetensors has \d[\d,]* bytes, more than the 100 that"):
        hub.pull(REPO, limit=100)
    changed(server, card=b" " * (5 << 20))
    with pytest.raises(LibraryError, match=r"card\.json has 5,242,880 bytes"):
        hub.pull(REPO)
    assert not any("/resolve/" in line for line in server.requests)


def test_a_repo_without_an_adapter(server: FakeHub):
    server.add("ana/bert", {"config.json": b"{}", "model.safetensors": b"x"})
    with pytest.raises(LibraryError, match=r"ana/bert holds no adapter of Inlay's: there is no card\.json in it"):
        hub.pull("ana/bert")


def test_a_model_is_not_overwritten(server: FakeHub, library: Library):
    files = {"README.md": b"mine", "model.safetensors": b"x"}
    server.add("ana/bert", files)
    with pytest.raises(LibraryError, match=r"ana/bert holds something else, for example model\.safetensors"):
        push(library, "ana/bert")
    assert server.repos["ana/bert"].commits[server.repos["ana/bert"].head] == files


def test_a_private_repo(server: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch):
    push(library, private=True)
    assert server.repos[REPO].private
    push(library, private=True)  # again
    monkeypatch.setenv("HF_TOKEN", "hf_" + "y" * 34)
    with pytest.raises(LibraryError, match=r"there is no repo 'ana/sms' on the hub that you may read; log in with"):
        hub.pull(REPO)
    assert hub.pull(REPO, token=TOKEN)[1].repo == REPO  # a token that is given counts


def test_a_public_repo_is_not_taken_for_a_private_one(server: FakeHub, library: Library):
    push(library)
    head = server.repos[REPO].head
    with pytest.raises(LibraryError, match="already exists and is public"):
        push(library, private=True)
    assert server.repos[REPO].head == head


def test_who_may_not_write(server: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "y" * 34)
    with pytest.raises(LibraryError, match=r"write to.*hf auth login"):
        push(library)


def test_names_that_are_none(server: FakeHub, library: Library):
    for name in ("a/b/c", "-x", "a..b", ""):
        with pytest.raises(LibraryError, match="expected owner/name"):
            hub.pull(name)
    with pytest.raises(LibraryError, match="there is no repo 'ana/nothing'"):
        hub.pull("ana/nothing")


def test_a_hub_that_cannot_be_reached(server: FakeHub, library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for act in (lambda: hub.pull(REPO), lambda: push(library)):
        with pytest.raises(LibraryError, match="the hub cannot be reached") as caught:
            act()
        assert str(caught.value).count("refused") == 1  # an error and its cause often say the same
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.status = 500
    with pytest.raises(LibraryError, match="the hub cannot read ana/sms: Server error '500"):
        hub.pull(REPO)


def test_offline(server: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    with pytest.raises(LibraryError, match=r"the hub cannot be reached: .*offline"):
        hub.pull(REPO)


def call(library: Library, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["library", *arguments, "--library", library.root], env={"COLUMNS": "100"})


def test_on_the_command_line(server: FakeHub, library: Library):
    done = call(library, "push", "sms", REPO, "--dtype", "float16", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["commit"] == server.repos[REPO].head
    assert f"sms@1 pushed to {server.url}/{REPO}" in done.stderr
    done = call(library, "pull", REPO, "--name", "from-hub")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("from-hub@1 (adapterbias, ")
    assert {t.dtype for t in library.get("from-hub").tensors.values()} == {torch.float16}
    failed = call(library, "pull", "ana/nothing")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: there is no repo 'ana/nothing' on the hub")
    assert "Traceback" not in failed.output
