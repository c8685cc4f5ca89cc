"""`inlay library ensemble`: adapters of a library under one name, answering as one."""

from __future__ import annotations

from typing import Annotated

from inlay.cli import options, output
from inlay.cli.help import DATA, argument
from inlay.cli.named_adapters import document_of, open_library
from inlay.errors import LibraryError


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
    from inlay.library.library import check_name

    store, refs = open_library(library), options.listed(of)
    check_name(name)
    if not refs:
        raise LibraryError("--of names no adapter")
    entries = [store.find(ref) for ref in refs]
    for entry in entries:
        if entry.members:
            raise LibraryError(f"{entry.ref} is an ensemble itself; name its members instead")
    counts = {entry.ref: [one.ref for one in entries].count(entry.ref) for entry in entries}
    distinct = list({entry.ref: entry for entry in entries}.values())
    from inlay.library.ensemble import Ensemble

    members = tuple(store.read_adapter(entry) for entry in distinct)
    made = Ensemble(members, tuple(counts.values()), name, Ensemble.shared(members), tuple(counts))
    card = distinct[0].card
    facts = {key: card[key] for key in ("base_name", "base_parameters") if card.get(key)}
    entry = store.put(made, name, parameters=Ensemble.parameters([one.card for one in distinct]), **facts)
    screen = output.console(as_json)
    screen.print(f"{entry.ref}: an ensemble of {', '.join(counts)}", soft_wrap=True)
    output.document(document_of(entry), as_json)
