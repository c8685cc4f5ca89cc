"""`inlay analyze alpha | words | shift | sparsity`: what AdapterBias does to which tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from inlay.cli import measured, options, output
from inlay.cli.analyze.show import Out, finish
from inlay.errors import RunError

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.library import Entry

Names = Annotated[str, typer.Argument(metavar="NAME[,NAME...]", help="Adapters of one base: sms, or sms@2.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="An adapter: sms, or sms@2.")]


def alpha(
    names: Names,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA", help="A file or folder for all, or one each.  [default: what each was validated on]"
        ),
    ] = None,
    split: measured.Split = None,
    rows: measured.Rows = None,
    seed: measured.Seed = 0,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """How much each layer shifts: mean |alpha|, of one or several adapterbias."""
    screen = output.console(as_json)
    asked, files = _several(names), data or []
    if len(files) not in (0, 1, len(asked)):
        raise RunError(f"{len(files)} files for {len(asked)} adapters: give one for all of them, or one for each")
    for i, name in enumerate(asked):
        measured.check([name], library, base, files[i % len(files)] if files else None, split, labelled=False)
    host, entries = _open(asked, library, base)
    from inlay.analysis.alpha import alpha as analysis

    examples = {}
    for i, name in enumerate(asked):
        own = files[i] if len(files) > 1 else files[0] if files else None
        _, examples[name] = measured.read_labelled(
            host, name, entries[name], own, screen, split=split, rows=rows, seed=seed, labelled=False
        )
    finish(analysis(host, examples), out, "-".join(asked), screen, as_json)


def words(
    name: Name,
    data: measured.Data = None,
    half: Annotated[
        Literal["all", "lower", "upper"] | None, typer.Option(help="Which layers are summed.  [default: each in turn]")
    ] = None,
    over: Annotated[
        Literal["mean", "sum"], typer.Option(help="Of a word that occurs often, the mean or the sum.")
    ] = "mean",
    negative: Annotated[
        Literal["colour", "drop"],
        typer.Option(help="Words of negative weight: in another colour, or not at all."),
    ] = "colour",
    least: Annotated[int, typer.Option(min=1, metavar="N", help="Leave out words that occur less often.")] = 1,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many words a cloud has.")] = 80,
    font: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TrueType font.  [default: DejaVu Sans]", dir_okay=False)
    ] = None,
    split: measured.Split = None,
    rows: measured.Rows = None,
    seed: measured.Seed = 0,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Which words are shifted most: a cloud of words by alpha, of an adapterbias."""
    screen = output.console(as_json)
    measured.check([name], library, base, data, split, labelled=False)
    host, _, entry = measured.open_adapter(name, library, base)
    from inlay.analysis.words import words as analysis

    _, examples = measured.read_labelled(
        host, name, entry, data, screen, split=split, rows=rows, seed=seed, labelled=False
    )
    found = analysis(
        host, name, examples, half=half, over=over, negative=negative, least=least, top=top, seed=seed, font=font
    )
    finish(found, out, name, screen, as_json)


def shift(
    names: Names,
    data: measured.Data = None,
    bare: Annotated[bool, typer.Option("--bare", help="A panel for the base without an adapter, too.")] = False,
    split: measured.Split = None,
    rows: Annotated[int, typer.Option(min=2, metavar="N", help="How many texts are shown, labels in turn.")] = 6,
    seed: measured.Seed = 0,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Where the last layer moves tokens, by label: of an adapterbias, and of a bitfit beside it."""
    screen = output.console(as_json)
    asked = _several(names)
    measured.check(asked, library, base, data, split)
    host, entries = _open(asked, library, base)
    from inlay.analysis.shift import shift as analysis

    _, examples = measured.read_labelled(host, asked[0], entries[asked[0]], data, screen, split=split)
    finish(analysis(host, asked, examples, rows=rows, seed=seed, bare=bare), out, "-".join(asked), screen, as_json)


def sparsity(
    names: Names,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """What L0 left of alpha's weights in every layer, of one or several adapterbias:l0=..."""
    screen = output.console(as_json)
    asked = _several(names)
    measured.check(asked, library, base, needs_rows=False)
    host, _ = _open(asked, library, base)
    from inlay.analysis.sparsity import sparsity as analysis

    finish(analysis(host, asked), out, "-".join(asked), screen, as_json)


def _several(names: str) -> list[str]:
    found = [name.strip() for name in names.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise RunError(f"{names!r} is not a list of different adapters; expected NAME,NAME without spaces")
    return found


def _open(names: list[str], library: str | None, base: str | None) -> tuple[Host, dict[str, Entry]]:
    """All of them on one host, which is the first one's."""
    entries: dict[str, Entry] = {}
    host: Host | None = None
    for name in names:
        host, _, entries[name] = measured.open_adapter(name, library, base, host=host)
    assert host is not None
    return host, entries
