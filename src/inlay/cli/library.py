"""`inlay library`: list, show, check, compare, alias, remove and restore adapters.

Everything here but `verify`, `diff` and `ensemble` reads cards alone and never imports torch, so that a thousand
adapters are listed in a second. Moving adapters in and out is in `cli/exchange.py`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import exchange, options, output
from inlay.cli.help import DATA, App, argument
from inlay.cli.named_adapters import document_of, open_library, versions_of
from inlay.errors import LibraryError
from inlay.library.card_text import in_library, size
from inlay.library.names import check_name
from inlay.screen import counted

if TYPE_CHECKING:
    from inlay.library.trash import Freed

app = App("Manage the adapters of a library: names, versions (sms@3) and aliases (sms@prod).")


@app.command("list")
def list_(
    all_versions: Annotated[bool, DATA.flag("--all-versions", "List all versions, not only the newest.")] = False,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """List the adapters, and what they cost together.

    Examples:
        inlay library list
        inlay library list --all-versions --json
    """
    from inlay.cli.card_display import show_list
    from inlay.library.aliases import current_of_all
    from inlay.library.index import read_index
    from inlay.library.library import Problem

    screen, store = output.console(as_json), open_library(library)
    problems: list[Problem] = []
    entries, index = store.list(all_versions=all_versions, damaged=problems), read_index(store.storage)
    newest = list({entry.name: entry for entry in entries}.values())  # ascending: the last one stays
    if entries:
        older = 0 if all_versions else sum(len(indexed.versions[:-1]) for indexed in index.values())
        show_list(screen, entries, newest, current_of_all(store.storage, index, []), older)
    elif not problems:
        screen.print(f"no adapters in {store.root} yet; inlay train FILE makes one", soft_wrap=True)
    for problem in problems:
        screen.print(f"{problem.ref}: {problem.message}", style="red", soft_wrap=True)
    output.document([document_of(entry) for entry in entries], as_json)
    if problems:
        raise typer.Exit(1)


@app.command()
def show(ref: options.Adapter, library: options.Library = None, as_json: output.AsJson = False) -> None:
    """Show one adapter: what it does, how good it is, how it was trained, and how to use it.

    Examples:
        inlay library show tickets
        inlay library show tickets@prod --json
    """
    from inlay.cli.card_display import show_card

    store = open_library(library)
    entry = store.find(ref)
    show_card(output.console(as_json), entry, versions_of(store, entry.name), library)
    output.document(document_of(entry), as_json)


@app.command()
def verify(
    ref: Annotated[str | None, argument("REF", "An adapter.  [default: all]", show_default=False)] = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Check that every file is intact, down to the last bit.

    Examples:
        inlay library verify
        inlay library verify tickets@2
    """
    screen, store = output.console(as_json), open_library(library)
    problems = store.verify(ref)
    for problem in problems:
        screen.print(f"{problem.ref or problem.path}: {problem.message}", style="red", soft_wrap=True)
    if not problems:
        screen.print(f"{ref or store.root} is intact", soft_wrap=True)
    documents = [{"ref": problem.ref, "path": problem.path, "message": problem.message} for problem in problems]
    output.document({"ok": not problems, "problems": documents}, as_json)
    if problems:
        raise typer.Exit(1)


@app.command()
def diff(
    a: Annotated[str, argument("A", "An adapter, such as sms@2.")],
    b: Annotated[str, argument("B", "Another one, such as sms@3.")],
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Compare two adapters: their cards field by field, their weights layer by layer.

    Examples:
        inlay library diff tickets@1 tickets@2
        inlay library diff tickets tone --json
    """
    from inlay.cli.card_display import show_diff
    from inlay.library.diff import compare

    store = open_library(library)
    entry_a, entry_b = store.find(a), store.find(b)
    difference = compare(store.read(entry_a).tensors, store.read(entry_b).tensors, entry_a.card, entry_b.card)
    show_diff(output.console(as_json), entry_a, entry_b, difference)
    output.document({"a": entry_a.ref, "b": entry_b.ref, **asdict(difference)}, as_json)


@app.command()
def alias(
    name: Annotated[str, argument("NAME", "The name of an adapter.")],
    alias: Annotated[str, argument("ALIAS", "The alias, such as prod.")],
    version: Annotated[
        str | None, argument("VERSION", "A version or another alias.  [default: the newest version]")
    ] = None,
    back: Annotated[bool, DATA.flag("--back", "Point the alias back at its previous version.")] = False,
    remove: Annotated[bool, DATA.flag("--remove", "Remove the alias, but not the version.")] = False,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Point an alias at a version, in one atomic step.

    Examples:
        inlay library alias tickets prod 3
        inlay library alias tickets prod --back
    """
    if [version is not None, back, remove].count(True) > 1:
        raise typer.BadParameter("VERSION, --back and --remove cannot be combined")
    screen, store = output.console(as_json), open_library(library)
    before = store.aliases(name, skip_damaged=True).get(alias)  # a damaged alias can be moved
    if remove:
        target = None
    elif back:
        target = _before(store.alias_history(name, alias), f"{name}@{alias}")
    else:
        target = store.resolve(name, version)
    store.alias(name, alias, target)
    was = "" if before in (None, target) else f", was {name}@{before}"
    screen.print(f"{name}@{alias} is {'removed' if target is None else f'{name}@{target}'}{was}", soft_wrap=True)
    output.document({"name": name, "alias": alias, "version": target, "before": before}, as_json)


def _before(moves: list[Any], shown: str) -> int:
    """Where an alias pointed before its last move."""
    version: int | None = moves[-2].version if len(moves) > 1 else None
    if version is None:
        raise LibraryError(f"{shown} has no previous version; give one")
    return version


@app.command()
def rm(
    refs: Annotated[list[str], argument("REF...", "What to remove: sms@2, or sms for all its versions.")],
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Remove adapters. They can be restored until the next `inlay library gc`.

    Examples:
        inlay library rm tickets@1
        inlay library rm tickets tone
    """
    screen, store = output.console(as_json), open_library(library)
    removed = store.remove(*refs)
    for entry in removed:
        screen.print(f"{entry.ref} is removed")
    names = shlex.join(refs)
    screen.print(f"to restore: inlay library restore {names}{in_library(library)}", style="dim", soft_wrap=True)
    output.document({"removed": [entry.ref for entry in removed]}, as_json)


@app.command()
def restore(
    refs: Annotated[
        list[str] | None, argument("REF...", "What to restore.  [default: list what can be restored]")
    ] = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Restore removed adapters; or list what can be restored.

    Examples:
        inlay library restore
        inlay library restore tickets@1
    """
    screen, store = output.console(as_json), open_library(library)
    if refs:
        restored = store.restore(*refs)
        for entry in restored:
            screen.print(f"{entry.ref} is back")
        document = {"restored": [entry.ref for entry in restored]}
    else:
        document = {"removed": [entry.ref for entry in store.removed()]}
        screen.print(f"removed: {', '.join(document['removed']) or 'nothing'}", soft_wrap=True)
    output.document(document, as_json)


@app.command()
def gc(
    dry_run: Annotated[bool, DATA.flag("--dry-run", "Only show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Delete removed adapters for good, and files that no adapter needs.

    Examples:
        inlay library gc --dry-run
        inlay library gc --yes
    """
    screen, store = output.console(as_json), open_library(library)
    if as_json and not (yes or dry_run):
        raise typer.BadParameter("--json cannot prompt: pass --yes or --dry-run")
    gone, freed = [entry.ref for entry in store.removed()], store.gc(dry_run=True)
    if freed.files and not dry_run:
        named = f", and with them for good {', '.join(gone)}" if gone else ""
        if not yes:
            typer.confirm(f"delete {_amount(freed)}{named}?", abort=True)
        freed = store.gc()
        screen.print(f"deleted {_amount(freed)}", soft_wrap=True)
    elif freed.files:
        screen.print(f"would delete {_amount(freed)}; removed adapters: {', '.join(gone) or 'none'}", soft_wrap=True)
    else:
        screen.print("nothing to delete")
    output.document({"files": freed.files, "bytes": freed.bytes, "removed": gone, "dry_run": dry_run}, as_json)


def _amount(freed: Freed) -> str:
    return f"{counted(freed.files, 'file')} ({size(freed.bytes)})"


@app.command()
def ensemble(
    name: Annotated[str, argument("NAME", "The name of the ensemble.")],
    of: Annotated[str, DATA.option("REF,REF...", "Its members: adapters of one base, task and set of labels.")],
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Let several adapters answer as one: their probabilities are averaged, and their disagreement is reported.

    A member that is named twice counts twice. The members stay where they are, and share their files with the ensemble.

    Examples:
        inlay library ensemble tickets-3 --of tickets@1,tickets@2,tickets@3
        inlay library ensemble tone --of tone-lora,tone-houlsby,tone-houlsby
    """
    store, refs = open_library(library), options.listed(of)
    check_name(name)
    if not refs:
        raise LibraryError("--of names no adapter")
    entries = [store.find(ref) for ref in refs]
    for entry in entries:
        if entry.members:
            raise LibraryError(f"{entry.ref} is an ensemble itself; name its members instead")
    counts, distinct = Counter(entry.ref for entry in entries), list({entry.ref: entry for entry in entries}.values())
    from inlay.library.ensemble import Ensemble

    members = tuple(store.read_adapter(entry) for entry in distinct)
    together = Ensemble(members, tuple(counts.values()), name, Ensemble.shared(members), tuple(counts))
    card = distinct[0].card
    facts = {key: card[key] for key in ("base_name", "base_parameters") if card.get(key)}
    entry = store.put(together, name, parameters=Ensemble.parameters([entry.card for entry in distinct]), **facts)
    screen = output.console(as_json)
    screen.print(f"{entry.ref}: an ensemble of {', '.join(counts)}", soft_wrap=True)
    output.document(document_of(entry), as_json)


app.command("export")(exchange.export)
app.command("import")(exchange.import_)
app.command("push")(exchange.push)
app.command("pull")(exchange.pull)
