"""`inlay library export | import | push | pull`: adapters in and out of a library.

Inlay's own exports, peft's and AdapterHub's folders are told apart by their files. Peers' folders need the base, since
only its shape says where their tensors belong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output
from inlay.errors import LibraryError, suggest

if TYPE_CHECKING:
    from inlay.base.load import Base
    from inlay.library.cards import Entry
    from inlay.library.library import Library

FORMATS = ("inlay", "peft", "adapterhub")
_BASES = ("base_model_name_or_path", "model_name")
"""Where the peers' `adapter_config.json` names the base."""

Name = Annotated[str | None, typer.Option("--name", metavar="N", help="What it is called here.  [default: as there]")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="T", help="float16 (half the bytes) or float32.  [default: as it is]")
]
Ref = Annotated[str, typer.Argument(metavar="REF", help="An adapter: sms (the newest), sms@3 or sms@prod.")]
Repo = Annotated[str, typer.Argument(metavar="REPO", help="A repo of the hub: owner/name.")]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="R", help="A branch, a tag or a commit.  [default: main]")
]


def export(
    ref: Ref,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; new, or empty.")],
    format: Annotated[str, typer.Option("--format", metavar="F", help="inlay, peft or adapterhub.")] = "inlay",
    dtype: Dtype = None,
    without_head: Annotated[
        bool, typer.Option("--without-head", help="For peft and adapterhub: the adapter alone.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Write an adapter into a folder, with a README."""
    if format not in FORMATS:
        raise LibraryError(f"there is no format {format!r}: {suggest(format, FORMATS)}")
    from inlay.interop import exported
    from inlay.library.about import size
    from inlay.library.library import Library

    screen, store = output.console(as_json), Library(library)
    entry = store.find(ref)
    if format == "inlay":
        if without_head:
            raise LibraryError(
                "--without-head is for --format peft and adapterhub; an export of Inlay is the whole adapter"
            )
        fill = exported.fill_with(exported.files(store, ref, dtype))
    else:
        fill = _fill_as(format, store, entry, dtype, base, without_head)
    names = exported.write(folder, fill, force)
    sizes = {name: (folder / name).stat().st_size for name in names}
    shown = ", ".join(f"{name} ({size(number)})" for name, number in sizes.items())
    screen.print(f"{entry.ref} is in {folder}: {shown}", soft_wrap=True)
    if as_json:
        output.document({"ref": entry.ref, "folder": str(folder), "format": format, "files": sizes})


def _fill_as(
    format: str, store: Library, entry: Entry, dtype: str | None, base: str | None, headless: bool
) -> Callable[[Path], None]:
    """Writing a peer's folder; its README says how the peer loads it."""
    from inlay.interop.exchange import without_head
    from inlay.library.readme import readme

    adapter, loaded = store.read(entry), _load(base or entry.card.get("base_name"))
    adapter = adapter if dtype is None else adapter.to(dtype)
    adapter = without_head(adapter) if headless else adapter

    def fill(folder: Path) -> None:
        _peer(format).write(adapter, loaded, folder)
        (folder / "README.md").write_text(readme(entry.card, peer=format), encoding="utf-8")

    return fill


def import_(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder of Inlay's, peft's or AdapterHub's; or a file.")
    ],
    name: Name = None,
    base: Annotated[
        str | None, typer.Option("--base", metavar="B", help="A hub name or a folder.  [default: as the folder says]")
    ] = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Put an adapter from elsewhere into the library."""
    from inlay.interop import exported
    from inlay.library.library import Library

    store = Library(library)
    if not path.exists():
        raise LibraryError(f"there is no {path}")
    if path.is_file():
        from inlay.library.adapter import Adapter

        adapter = Adapter.read(path)
        entry = store.put(adapter, name or adapter.name or _name_of(path))
    elif exported.recognises(path):
        entry = exported.adopt(store, exported.read(path), str(path), name)
    else:
        entry = _from_peer(store, path, name or _name_of(path), base)
    _kept(entry, store, as_json)


def _from_peer(store: Library, folder: Path, name: str, base: str | None) -> Entry:
    format = next((one for one in FORMATS[1:] if _peer(one).recognises(folder)), None)
    if format is None:
        raise LibraryError(
            f"{folder} holds no adapter: expected card.json and adapter.safetensors (an export of Inlay), "
            "or adapter_config.json with the weights of peft or AdapterHub beside it"
        )
    named = base or _named_base(folder)
    if named is None:
        raise LibraryError(f"{folder} does not say for which base it is; pass --base")
    loaded = _load(named)
    adapter = _peer(format).read(folder, loaded)
    head = sum(tensor.numel() for key, tensor in adapter.tensors.items() if key.startswith("head."))
    count = sum(tensor.numel() for tensor in adapter.tensors.values()) - head
    whole = loaded.sites.size
    parameters = {"adapter": count, "head": head, "share_of_base": count / whole}
    about: dict[str, Any] = {
        "base_name": str(loaded.name),
        "base_parameters": whole,
        "parameters": parameters,
        "source": format,
    }
    return store.put(adapter, name, **about)


def _named_base(folder: Path) -> str | None:
    """The base that a peer's settings name."""
    try:
        found: Any = json.loads((folder / "adapter_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    values = (found.get(key) for key in _BASES) if isinstance(found, dict) else ()
    return next((value for value in values if isinstance(value, str) and value), None)


def _name_of(path: Path) -> str:
    stem = path.resolve().name.partition(".")[0] if path.is_file() else path.resolve().name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")[:100] or "adapter"


def _peer(format: str) -> Any:
    import importlib

    return importlib.import_module(f"inlay.interop.{format}")


def _load(name: str | None) -> Base:
    from inlay.base.load import load

    return load(name, device="cpu")


def _kept(entry: Entry, store: Library, as_json: bool) -> None:
    from inlay.library.about import size

    screen = output.console(as_json)
    screen.print(f"{entry.ref} ({entry.card['method']}, {size(entry.bytes)}) is in {store.root}", soft_wrap=True)
    if as_json:
        output.document({**entry.card, "aliases": list(entry.aliases)})


def push(
    ref: Ref,
    repo: Repo,
    private: Annotated[bool, typer.Option("--private", help="Make the repo private, if it is new.")] = False,
    revision: Annotated[str | None, typer.Option("--revision", metavar="R", help="A branch.  [default: main]")] = None,
    dtype: Dtype = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Push an adapter to the hub, with a README. HF_TOKEN or `hf auth login` says who you are."""
    from inlay.interop import exported, hub
    from inlay.library.library import Library

    screen, store = output.console(as_json), Library(library)
    entry = store.find(ref)
    files = exported.files(store, entry.ref, dtype, repo)
    message = f"{entry.ref}: {entry.card['method']}, {entry.card['task']}"
    place = hub.push(files, repo, private=private, revision=revision, message=message)
    screen.print(f"{entry.ref} is at {place.url} (commit {place.commit[:12]})", soft_wrap=True)
    screen.print(f"to get it: inlay library pull {repo}", style="dim", soft_wrap=True)
    if as_json:
        output.document({"ref": entry.ref, "repo": repo, "commit": place.commit, "url": place.url})


def pull(
    repo: Repo,
    name: Name = None,
    revision: Revision = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Pull an adapter from the hub, checked as one in the library is."""
    from inlay.interop import exported, hub
    from inlay.library.library import Library

    store = Library(library)
    files, place = hub.pull(repo, revision=revision)
    _kept(exported.adopt(store, files, f"{repo}@{place.commit}", name), store, as_json)
