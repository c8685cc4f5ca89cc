"""`inlay params`: how many parameters a method trains, counted on meta tensors, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from inlay.cli import option_checks, options, output
from inlay.cli.help import METHOD, usage
from inlay.config import split_list, split_spec
from inlay.errors import InlayError, SpecError
from inlay.heads import HEADS
from inlay.registry import methods

if TYPE_CHECKING:
    from inlay.bank.delta import Method
    from inlay.base.sites import Sites

TASKS = 100


def params(
    shape: Annotated[
        str,
        METHOD.option(
            "SHAPE",
            f"{options.either(option_checks.SHAPES)}; or a folder with a config.json.",
            check=option_checks.shape,
        ),
    ] = "bert-base",
    method: Annotated[
        list[str] | None,
        METHOD.option(
            "SPEC",
            "A method such as houlsby:size=64, or several separated by commas. Repeatable.  [default: every method]",
            check=option_checks.methods,
        ),
    ] = None,
    head: Annotated[
        str | None, METHOD.option("HEAD", f"Count a head too: {options.either(HEADS)}.", check=option_checks.head)
    ] = None,
    labels: Annotated[int | None, METHOD.option("N", "The number of labels.  [default: 2]", min=1)] = None,
    as_json: output.AsJson = False,
) -> None:
    """Count the parameters that methods train. Needs no weights.

    Examples:
        inlay params --shape bert-base
        inlay params --shape bert-large --method adapterbias,lora:rank=4 --json
    """
    with usage("--method"):
        chosen = _chosen(method)  # a wrong spec is noticed before a model is built
    from inlay.base.shapes import sites_of

    sites = sites_of(shape)
    documents, notes = _count(chosen, shape, sites, skip=not method)
    if head is not None or labels is not None:
        head_count = _head(head or "linear", labels or 2, sites)
        documents = [{**document, "head": head_count} for document in documents]
    screen = output.console(as_json)
    if documents:
        _show(screen, documents, sites)
    for note in notes:
        screen.print(note, style="dim")
    output.document(documents[0] if method and len(documents) == 1 else documents, as_json)


def _chosen(specs: Sequence[str] | None) -> Sequence[str | Method]:
    if not specs:
        return methods.names()
    for spec in (part for text in specs for part in split_list(text, methods.names())):
        methods.check(split_spec(spec)[0])
    from inlay.bank.delta import parse_list

    parsed = [method for text in specs for method in parse_list(text)]
    if not parsed:
        raise SpecError("it is empty; a spec is name:key=value,key=value")
    return parsed


def _count(
    chosen: Sequence[str | Method], shape: str, sites: Sites, skip: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """A document per method; with `skip`, a method that cannot be used here becomes a note."""
    from inlay.bank.delta import parse

    documents, notes = [], []
    for method in chosen:
        try:
            documents.append(_document(parse(method), shape, sites))
        except InlayError as error:
            if not skip:
                raise
            notes.append(f"left out: {error}")
    return documents, notes


def _document(method: Method, shape: str, sites: Sites) -> dict[str, Any]:
    by_site = method.by_site(sites)
    total = sum(by_site.values())
    while_training = sum(p.numel for p in method.params(sites).values() if not p.is_fixed)
    return {
        "shape": shape,
        "method": method.spec,
        "total": total,
        "by_site": by_site,
        "share_of_base": total / sites.size,
        "base": sites.size,
        "training_only": while_training - total,
    }


def _head(kind: str, labels: int, sites: Sites) -> dict[str, Any]:
    from inlay.bank.delta import params_of
    from inlay.heads.head import head_part

    part = head_part(kind, labels, sites.hidden)
    return {"kind": kind, "labels": labels, "parameters": sum(p.numel for p in params_of([part]).values())}


def _show(screen: output.Console, documents: Sequence[Mapping[str, Any]], sites: Sites) -> None:
    screen.print(f"{documents[0]['shape']}: {sites.size:,} parameters, {sites.layers} layers of width {sites.hidden}\n")
    cells = [
        (output.fold(d["method"].split(","), 28, ","), f"{d['total']:,}", output.percent(d["share_of_base"]))
        for d in documents
    ]
    widths = [max(len(line) for row in cells for line in row[column].splitlines()) for column in range(3)]
    room = screen.width - sum(widths) - 3 * output.GAP
    table = output.table("method", "parameters", "of base", "by site", right=("parameters", "of base"))
    for row, document in zip(cells, documents, strict=True):
        by_site = output.fold(_by_site(document["by_site"]), room)
        if document["training_only"]:
            by_site += f"\nwhile training {document['training_only']:,} more"
        table.add_row(*row, by_site)
    screen.print(table)
    if "head" in documents[0]:
        head = documents[0]["head"]
        screen.print(f"\nhead: {head['parameters']:,} more for each task ({head['kind']}, {head['labels']} labels)")
    screen.print(f"\n{_summary(documents)}")


def _by_site(counts: Mapping[str, int]) -> list[str]:
    """`attn.out 1,189,632`; a run of layers of one size becomes `layers.0-11 7,087,872 each`."""
    runs: list[tuple[str, str, int]] = []
    for name, count in counts.items():
        stem, _, index = name.rpartition(".")
        if runs and stem == "layers" and runs[-1][0].startswith("layers.") and runs[-1][2] == count:
            runs[-1] = (runs[-1][0], index, count)
        else:
            runs.append((name, "", count))
    return [f"{first}-{last} {count:,} each" if last else f"{first} {count:,}" for first, last, count in runs]


def _cost(document: Mapping[str, Any]) -> float:
    """What many tasks cost in all, in bases: the base itself included, unless each task has its own weights."""
    total: int = document["total"]
    each: int = total + document.get("head", {}).get("parameters", 0)
    base: int = document["base"]
    return (total < base) + TASKS * each / base


def _times(cost: float) -> str:
    return f"{cost:.2f}x" if cost < 10 else f"{cost:.0f}x"


def _summary(documents: Sequence[Mapping[str, Any]]) -> str:
    ends = {_times(pick(map(_cost, documents))): None for pick in (min, max)}
    heads = " with heads" if "head" in documents[0] else ""
    return f"{TASKS} tasks{heads}: {' to '.join(ends)} the base, against {TASKS}x for full models"
