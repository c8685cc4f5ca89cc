"""`inlay demo`: what the core promises, checked on a real base in a few seconds.

Adapters here hold random numbers, not trained ones: the demo shows that one pass over a mixed batch gives every
adapter the answers it gives alone, that adapters come and go without touching one another, and that the base
stays as it was. It says nothing about accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import typer

from inlay.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from inlay.data.batch import Batch
    from inlay.engine.host import Host
    from inlay.library.adapter import Adapter

WHAT = "core demo: no training of tasks yet; adapters hold random numbers"
SENTENCES = (
    "You have won a prize! Reply YES to claim it.",
    "The match ended two to one after extra time.",
    "My parcel was due on Monday and still has not arrived.",
    "Aspirin inhibits the production of prostaglandins.",
    "What a dull film.",
    "The tenant shall give the landlord three months' notice in writing.",
    "Is there a train from Basel to Turin on Sunday evening?",
    "Whisk the eggs with the sugar until they are pale, then fold in the flour and bake for half an hour.",
)
LABELS = (("no", "yes"), ("negative", "neutral", "positive"), ("sport", "science", "law", "travel", "food"))
NEWCOMERS = ("houlsby:size=256", "lora:rank=32", "adapterbias:share=both", "bitfit:layers=top2")
CHECKS = {
    "mixed_equals_alone": "rows of the mixed batch equal the same rows run alone",
    "adapters_matter": "every adapter changes what the base computes",
    "neighbours_do_not": "adding and removing adapters changes no bit of another's answers",
    "base_unchanged": "the base's weights are what they were",
}
TOLERANCE = 1e-5
NOISE = 0.02
REPEATS = 5


def demo(as_json: output.AsJson = False) -> None:
    """Check the core's promises on a real base.

    Adapters of every method, with random numbers in them, answer one mixed batch; then some come and go. Nothing is
    trained yet.
    """
    from inlay.registry import methods

    began = time.perf_counter()
    screen = output.console(as_json)
    screen.print(WHAT, style="bold")
    found = _run(methods.names(), screen)
    found["seconds"] = round(time.perf_counter() - began, 2)
    _show_checks(screen, found)
    if as_json:
        output.document(found)
    if not all(found["checks"].values()):
        raise typer.Exit(1)


def _run(names: Sequence[str], screen: Console) -> dict[str, Any]:
    import torch

    from inlay.engine.host import Host

    host = Host(dtype=torch.float32)  # exact enough to compare answers with a tight tolerance
    base = host.base
    screen.print(f"base: {base.name}, {base.sites.size:,} parameters\n")
    with torch.no_grad():
        batch = host.batch(SENTENCES)
        adapters = {name: _random(host, name, seed) for seed, name in enumerate(names)}
        answers = [_answers(host, batch, names[0]) for _ in _come_and_go(host, adapters)]
        rows, passes = _compare(host, batch, names)
        _show_rows(screen, rows, passes)
        timing = _timing(host, rows)
    _show_timing(screen, timing)
    checks = {
        "mixed_equals_alone": all(row["max_difference"] <= TOLERANCE for row in rows),
        "adapters_matter": all(row["change"] > 100 * TOLERANCE for row in rows),
        "neighbours_do_not": _identical(answers),
        "base_unchanged": _verified(host),
    }
    about = {"name": base.name, "parameters": base.sites.size, "fingerprint": base.fingerprint}
    found = {"what": WHAT, "base": about, "rows": len(names) * len(SENTENCES), "passes": passes, "methods": rows}
    return found | {"timing": timing, "checks": checks}


def _random(host: Host, spec: str, seed: int) -> Adapter:
    """An adapter as training might leave it: every trained number moved a little, gates applied and dropped."""
    import torch

    host.add(spec, spec, labels=LABELS[seed % len(LABELS)], seed=seed)
    fresh = host.adapter(spec)
    host.unload(spec)
    random = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor if name.endswith(".gate") else tensor + NOISE * torch.randn(tensor.shape, generator=random)
        for name, tensor in fresh.tensors.items()
    }
    host.load(replace(fresh, tensors=tensors), spec)
    finished = host.adapter(spec, finish=True)
    host.unload(spec)
    return finished


def _come_and_go(host: Host, adapters: Mapping[str, Adapter]) -> Iterator[None]:
    """The first adapter alone, among all, among more, alone, and among all again."""
    first, *others = adapters
    host.load(adapters[first], first)
    yield
    for name in others:
        host.load(adapters[name], name)
    yield
    for seed, spec in enumerate(NEWCOMERS):
        host.load(_random(host, spec, seed), spec)
    yield
    for name in [*others, *NEWCOMERS]:
        host.unload(name)
    yield
    for name in others:
        host.load(adapters[name], name)
    yield


def _answers(host: Host, batch: Batch, name: str) -> list[Tensor]:
    return host.logits(batch, [name] * len(batch.lengths))


def _compare(host: Host, batch: Batch, names: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Each adapter's rows of the mixed batch beside the same rows run alone, and the passes the batch took."""
    from inlay.bank.delta import WeightMethod, parse

    base, passes = host.base, []
    first_layer = base.model.get_submodule(base.sites.layer_paths[0])
    counting = first_layer.register_forward_pre_hook(lambda *_: passes.append(1))
    every_text = host.batch([text for text in SENTENCES for _ in names])
    mixed = host.logits(every_text, list(names) * len(SENTENCES))
    counting.remove()
    bare = host.hidden(batch, [None] * len(SENTENCES)).rows()
    rows = []
    for i, name in enumerate(names):
        method = parse(name)
        count = method.count(base.sites)
        row = {"method": method.spec, "parameters": count, "share_of_base": count / base.sites.size}
        row["pass"] = "own" if isinstance(method, WeightMethod) else "shared"
        row["change"] = _largest(host.hidden(batch, [name] * len(SENTENCES)).rows(), bare)
        row["max_difference"] = _largest(mixed[i :: len(names)], _answers(host, batch, name))
        rows.append(row)
    return rows, len(passes)


def _timing(host: Host, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One request for each adapter, for all of them and for those that share a pass."""
    every = [row["method"] for row in rows]
    sharing = [row["method"] for row in rows if row["pass"] == "shared"]
    return {"all": _race(host, every), "sharing_a_pass": _race(host, sharing)}


def _race(host: Host, names: Sequence[str]) -> dict[str, Any]:
    """A sentence for each adapter: all in one batch, or one after the other; in median milliseconds."""
    texts = [SENTENCES[i % len(SENTENCES)] for i in range(len(names))]
    together, singles = host.batch(texts), [host.batch([text]) for text in texts]

    def mixed() -> None:
        host.logits(together, names)

    def separate() -> None:
        for one, name in zip(singles, names, strict=True):
            host.logits(one, [name])

    return {"requests": len(names), "mixed_ms": _median_ms(mixed), "separate_ms": _median_ms(separate)}


def _median_ms(run: Callable[[], None]) -> float:
    run()
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return round(1000 * median(spent), 2)


def _verified(host: Host) -> bool:
    from inlay.errors import BaseError

    try:
        host.base.verify()
    except BaseError:
        return False
    return True


def _largest(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    import torch

    return float(torch.stack([(x - y).abs().max() for x, y in zip(a, b, strict=True)]).max())


def _identical(answers: Sequence[Sequence[Tensor]]) -> bool:
    return all(x.equal(y) for later in answers[1:] for x, y in zip(answers[0], later, strict=True))


def _show_rows(screen: Console, rows: Sequence[Mapping[str, Any]], passes: int) -> None:
    columns = ("parameters", "of base", "moves base by", "mixed - alone")
    table = output.table("method", *columns, "pass", right=columns)
    for row in rows:
        share = output.percent(row["share_of_base"])
        gap = f"{row['max_difference']:.0e}" if row["max_difference"] else "0"
        numbers = (f"{row['parameters']:,}", share, f"{row['change']:.2f}", gap)
        table.add_row(row["method"], *numbers, row["pass"])
    screen.print(table)
    count = len(rows) * len(SENTENCES)
    screen.print(
        f"\nOne batch of {count} rows: {len(SENTENCES)} sentences, each for {len(rows)} adapters, in {passes} passes "
        "through the base. moves base by: the largest change of a hidden state. mixed - alone: the largest "
        "difference between an answer in that batch and the same row run alone."
    )


def _show_timing(screen: Console, timing: Mapping[str, Any]) -> None:
    screen.print("\nOne sentence for each adapter:")
    for which, one in timing.items():
        who = f"all {one['requests']}" if which == "all" else f"the {one['requests']} that share a pass"
        mixed, separate = one["mixed_ms"], one["separate_ms"]
        screen.print(f"  {who:<24}{mixed:6.0f} ms mixed{separate:8.0f} ms one by one{separate / mixed:8.1f}x")


def _show_checks(screen: Console, found: Mapping[str, Any]) -> None:
    screen.print()
    for check, passed in found["checks"].items():
        screen.print("ok  " if passed else "FAIL", style="green" if passed else "bold red", end="  ")
        screen.print(CHECKS[check])
    screen.print(f"\n{found['seconds']:.1f} s")
