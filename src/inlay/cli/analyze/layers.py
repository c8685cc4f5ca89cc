"""`inlay analyze ablation | landscape | rsa`: what an adapter does in which layer, and how it got there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.cli import measured, options, output
from inlay.cli.analyze import show
from inlay.errors import LibraryError

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.library import Entry

Metric = Annotated[str | None, typer.Option(metavar="M", help="The metric.  [default: the one it was chosen by]")]
Names = Annotated[str, typer.Argument(metavar="NAME[,NAME...]", help="Adapters of one base: sms, or sms,tone@2.")]


def ablate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An adapter: sms, or sms@2.")],
    data: measured.Data = None,
    metric: Metric = None,
    with_norms: Annotated[bool, typer.Option("--with-norms", help="Remove trained norms too.")] = False,
    split: measured.Split = None,
    rows: measured.Rows = None,
    seed: measured.Seed = 0,
    out: show.Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """The metric when the adapters of every span of layers are removed."""
    screen = output.console(as_json)
    measured.check([name], library, base, data, split)
    host, _, entry = measured.open_adapter(name, library, base)
    where, examples = measured.read_labelled(host, name, entry, data, screen, split=split, rows=rows, seed=seed)
    from inlay.analysis.ablation import ablation

    found = ablation(host, name, examples, metric=metric, with_norms=with_norms, where=where)
    show.finish(found, out, name, screen, as_json)


def walk(
    names: Names,
    data: measured.Data = None,
    points: Annotated[int, typer.Option(min=2, metavar="N", help="So many places on the line.")] = 20,
    metric: Metric = None,
    split: measured.Split = None,
    rows: measured.Rows = None,
    seed: measured.Seed = 0,
    out: show.Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """The loss along the line from initial to trained parameters, and beyond."""
    screen = output.console(as_json)
    host, asked, entry = _open(names, library, base, data, split)
    where, examples = measured.read_labelled(host, asked[0], entry, data, screen, split=split, rows=rows, seed=seed)
    from inlay.analysis.landscape import landscape

    found = landscape(host, asked, examples, points=points, metric=metric, where=where)
    show.finish(found, out, "-".join(asked), screen, as_json)


def compare(
    names: Names,
    data: measured.Data = None,
    tokens: Annotated[int, typer.Option(min=10, metavar="N", help="So many tokens, drawn at random.")] = 5000,
    split: measured.Split = None,
    rows: measured.Rows = None,
    seed: measured.Seed = 0,
    out: show.Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """How similar tuned models' representations are to the base's, layer by layer."""
    screen = output.console(as_json)
    host, asked, entry = _open(names, library, base, data, split, labelled=False)
    where, examples = measured.read_labelled(
        host, asked[0], entry, data, screen, split=split, rows=rows, seed=seed, labelled=False
    )
    from inlay.analysis.rsa import rsa

    found = rsa(host, asked, examples, tokens=tokens, seed=seed, where=where)
    show.finish(found, out, "-".join(asked), screen, as_json)


def _open(
    names: str, library: str | None, base: str | None, data: str | None, split: str | None, labelled: bool = True
) -> tuple[Host, list[str], Entry]:
    """Adapters of one base on one host, and the first one's entry."""
    asked = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not asked:
        raise LibraryError("expected the name of an adapter, or several with commas between them")
    measured.check(asked, library, base, data, split, labelled=labelled)
    host, _, entry = measured.open_adapter(asked[0], library, base)
    for name in asked[1:]:
        measured.open_adapter(name, library, host=host)
    return host, asked, entry
