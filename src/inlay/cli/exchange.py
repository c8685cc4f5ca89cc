"""`inlay library export | import | push | pull`: adapters in and out of a library.

Inlay's own exports, peft's and AdapterHub's folders are told apart by their files. Peers' folders need the base, since
only its shape says where their tensors belong.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from inlay.cli import option_checks, options, output
from inlay.cli.help import METHOD, OUTPUT, argument
from inlay.cli.named_adapters import base_of, document_of, open_library
from inlay.errors import LibraryError
from inlay.library.card_text import size

if TYPE_CHECKING:
    from inlay.library.cards import Entry
    from inlay.library.library import Library

FORMATS = ("inlay", "peft", "adapterhub")
_BASES = ("base_model_name_or_path", "model_name")
"""Where the peers' `adapter_config.json` names the base."""

Name = Annotated[str | None, options.name("The name to save it under.  [default: the name it comes with]")]
Dtype = Annotated[
    str | None,
    OUTPUT.option(
        "DTYPE",
        "float16 (half the size) or float32.  [default: unchanged]",
        check=option_checks.one_of("dtype", ("float16", "float32")),
    ),
]
Repo = Annotated[str, argument("REPO", "A hub repository: owner/name.")]
Revision = Annotated[str | None, OUTPUT.option("REVISION", "A branch, tag or commit.  [default: main]")]


def export(
    ref: options.Adapter,
    folder: Annotated[Path, argument("FOLDER", "A new or empty folder.")],
    format: Annotated[
        str,
        OUTPUT.option(
            "KIND",
            f"Who will load it: {options.either(FORMATS)}.",
            name="--as",
            check=option_checks.one_of("format", FORMATS),
        ),
    ] = "inlay",
    dtype: Dtype = None,
    without_head: options.WithoutHead = False,
    force: options.Overwrite = False,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Write an adapter into a folder, with a README.

    Examples:
        inlay library export tickets tickets-folder
        inlay library export tickets@prod for-peft --as peft
    """
    from inlay.interop import exported

    screen, store = output.console(as_json), open_library(library)
    entry = store.find(ref)
    if format == "inlay":
        if without_head:
            raise LibraryError(
                "--without-head is for --as peft and --as adapterhub; an export of Inlay is the whole adapter"
            )
        fill = exported.fill_with(exported.files(store, ref, dtype))
    else:
        fill = _fill_as(format, store, entry, dtype, base, without_head)
    names = exported.write(folder, fill, force)
    sizes = {name: (folder / name).stat().st_size for name in names}
    shown = ", ".join(f"{name} ({size(number)})" for name, number in sizes.items())
    screen.print(f"{entry.ref} exported to {folder}: {shown}", soft_wrap=True)
    output.document({"ref": entry.ref, "folder": str(folder), "format": format, "files": sizes}, as_json)


def _fill_as(
    format: str, store: Library, entry: Entry, dtype: str | None, base: str | None, headless: bool
) -> Callable[[Path], None]:
    """What writes a peer's folder; its README says how the peer loads it."""
    from inlay.library.model_card import render_model_card

    base = base_of(base, [entry])
    from inlay.base.load import load
    from inlay.interop.exchange import without_head

    adapter, loaded = store.read_adapter(entry, "exported"), load(base, device="cpu")
    adapter = adapter if dtype is None else adapter.to(dtype)
    adapter = without_head(adapter) if headless else adapter

    def fill(folder: Path) -> None:
        _peer(format).write(adapter, loaded, folder)
        (folder / "README.md").write_text(render_model_card(entry.card, peer=format), encoding="utf-8")

    return fill


def import_(
    path: Annotated[Path, argument("PATH", "A folder written by Inlay, peft or AdapterHub; or a file.")],
    name: Name = None,
    base: Annotated[
        str | None, METHOD.option("BASE", f"{options.BASE}  [default: the one named in the folder]")
    ] = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Import an adapter into the library.

    Examples:
        inlay library import tickets-folder
        inlay library import peft-folder --name tone --base sentence-transformers/all-MiniLM-L6-v2
    """
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
    _tell_saved(entry, store, as_json)


def _from_peer(store: Library, folder: Path, name: str, base: str | None) -> Entry:
    format = next((kind for kind in FORMATS[1:] if _peer(kind).recognises(folder)), None)
    if format is None:
        raise LibraryError(
            f"{folder} holds no adapter: expected card.json and adapter.safetensors (an export of Inlay), "
            "or adapter_config.json with the weights of peft or AdapterHub beside it"
        )
    base = base or _named_base(folder)
    if base is None:
        raise LibraryError(f"{folder} does not say for which base it is; pass --base")
    from inlay.base.load import load

    loaded = load(base, device="cpu")
    adapter = _peer(format).read(folder, loaded)
    head = sum(tensor.numel() for key, tensor in adapter.tensors.items() if key.startswith("head."))
    count = sum(tensor.numel() for tensor in adapter.tensors.values()) - head
    size_of_base = loaded.sites.size
    parameters = {"adapter": count, "head": head, "share_of_base": count / size_of_base}
    of_base: dict[str, Any] = {"base_name": str(loaded.name), "base_parameters": size_of_base}
    return store.put(adapter, name, **of_base, parameters=parameters, source=format)


def _named_base(folder: Path) -> str | None:
    """The base that a peer's settings name."""
    try:
        config: Any = json.loads((folder / "adapter_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    values = (config.get(key) for key in _BASES) if isinstance(config, dict) else ()
    return next((value for value in values if isinstance(value, str) and value), None)


def _name_of(path: Path) -> str:
    stem = path.resolve().name.partition(".")[0] if path.is_file() else path.resolve().name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")[:100] or "adapter"


def _peer(format: str) -> Any:
    return importlib.import_module(f"inlay.interop.{format}")


def _tell_saved(entry: Entry, store: Library, as_json: bool) -> None:
    screen = output.console(as_json)
    screen.print(f"{entry.ref} ({entry.card['method']}, {size(entry.bytes)}) saved to {store.root}", soft_wrap=True)
    output.document(document_of(entry), as_json)


def push(
    ref: options.Adapter,
    repo: Repo,
    private: Annotated[bool, OUTPUT.flag("--private", "Make the repository private if it is new.")] = False,
    revision: Revision = None,
    dtype: Dtype = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Push an adapter to the hub, with a README. Log in with HF_TOKEN or `hf auth login`.

    Examples:
        inlay library push tickets me/tickets
        inlay library push tickets@prod me/tickets --private --dtype float16
    """
    from inlay.interop import exported, hub

    screen, store = output.console(as_json), open_library(library)
    entry = store.find(ref)
    files = exported.files(store, entry.ref, dtype, repo)
    message = f"{entry.ref}: {', '.join(filter(None, (entry.card['method'], entry.card['task'])))}"
    place = hub.push(files, repo, private=private, revision=revision, message=message)
    screen.print(f"{entry.ref} pushed to {place.url} (commit {place.commit[:12]})", soft_wrap=True)
    screen.print(f"to download it: inlay library pull {repo}", style="dim", soft_wrap=True)
    output.document({"ref": entry.ref, "repo": repo, "commit": place.commit, "url": place.url}, as_json)


def pull(
    repo: Repo,
    name: Name = None,
    revision: Revision = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Pull an adapter from the hub into the library, and check it.

    Examples:
        inlay library pull me/tickets
        inlay library pull me/tickets --name shared --revision v2
    """
    from inlay.interop import exported, hub
    from inlay.library.library import Library

    store = Library(library)
    files, place = hub.pull(repo, revision=revision)
    _tell_saved(exported.adopt(store, files, f"{repo}@{place.commit}", name), store, as_json)
