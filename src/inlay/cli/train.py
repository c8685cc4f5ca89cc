"""`inlay train`: from a file to an adapter in the library; or many, from a manifest."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output
from inlay.errors import InlayError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.engine.host import Host
    from inlay.library.library import Library
    from inlay.training.checkpoint import Checkpoint
    from inlay.training.logs import Log
    from inlay.training.prepare import Prepared
    from inlay.training.result import Result
    from inlay.training.run import Run


def train(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="A file, a folder with splits, or a hub dataset.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="N", help="What the adapter is called.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="F", help="A TOML file of many tasks, trained side by side.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="T", help="classification, multilabel, regression, tagging, qa, mlm.  [default: guessed]"),
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="SPEC", help="For example houlsby:size=64.")] = None,
    base: options.Base = None,
    head: Annotated[str | None, typer.Option(metavar="H", help="linear, tanh2, mlp or relu2.")] = None,
    pool: Annotated[str | None, typer.Option(metavar="P", help="auto, cls, mean, last or pooler.")] = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    format: options.Format = None,
    encoding: options.Encoding = None,
    val: Annotated[str | None, typer.Option(metavar="F", help="A file of validation rows.")] = None,
    val_size: Annotated[str | None, typer.Option(metavar="N|P%", help="Rows to hold out.  [default: 10%]")] = None,
    test: Annotated[str | None, typer.Option(metavar="F", help="A file of test rows.")] = None,
    train_size: Annotated[str | None, typer.Option(metavar="N|P%", help="Train on so many rows only.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Draw rows without regard to their classes.")] = False,
    lr: Annotated[float | None, typer.Option(metavar="X", help="Peak learning rate.  [default: the method's]")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the data.  [default: 5]")] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Stop after so many steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Rows per step.  [default: 16]")] = None,
    max_length: Annotated[int | None, typer.Option(metavar="N", help="Longest row in tokens.")] = None,
    long: Annotated[
        str | None, typer.Option(metavar="HOW", help="Longer texts: cut, or windows with pooled scores.")
    ] = None,
    warmup: Annotated[float | None, typer.Option(metavar="X", help="Share of rising steps.  [default: 0.1]")] = None,
    weight_decay: Annotated[float | None, typer.Option(metavar="X", help="Decoupled weight decay.")] = None,
    decay: Annotated[
        str | None, typer.Option(metavar="WHAT", help="What decays: difference, or (finetune) weights.")
    ] = None,
    clip: Annotated[float | None, typer.Option(metavar="X", help="Largest gradient norm.  [default: 1]")] = None,
    no_dropout: Annotated[bool, typer.Option("--no-dropout", help="Train without the base's dropout.")] = False,
    class_weights: Annotated[bool, typer.Option("--class-weights", help="Weigh rare classes more.")] = False,
    eval_every: Annotated[int | None, typer.Option(metavar="N", help="Evaluate every N steps.")] = None,
    patience: Annotated[int | None, typer.Option(metavar="N", help="Stop after N evaluations without a best.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="M", help="The metric that decides.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Start, order, dropout, splits.  [default: 0]")] = None,
    pretrain_on_text: Annotated[
        bool, typer.Option("--pretrain-on-text", help="First train on the texts alone, with masked words.")
    ] = False,
    pretrain_epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Passes over the texts.  [default: 3]")
    ] = None,
    skip_bad_rows: options.SkipBadRows = False,
    slots: Annotated[int | None, typer.Option(min=1, metavar="N", help="Runs at once.  [default: what fits]")] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile layers (CUDA).  [default: if it pays]")
    ] = None,
    weights: options.Weights = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away a training that was stopped.")] = False,
    save_every: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds between checkpoints.")] = 60.0,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND:WHERE", help="jsonl:F, tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT."),
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Keep the adapter in fp16: half the bytes.")] = False,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Train an adapter on a file; or many, side by side, from a manifest."""
    given = {k: v for k, v in locals().items() if k in _SETTINGS and v is not None}
    given |= {key: True for key, on in zip(_FLAGS, (class_weights, pretrain_on_text, skip_bad_rows), strict=True) if on}
    given |= ({"stratify": False} if plain else {}) | ({"dropout": False} if no_dropout else {})
    screen = output.console(as_json)
    runs, folder = _runs(data, name, manifest, given)
    from inlay.cli.progress import show_result, show_summary
    from inlay.library.library import Library
    from inlay.training.checkpoint import Checkpoint

    store = Library(library)
    checkpoint = Checkpoint(store.local / "runs" / folder)
    _settle(checkpoint, resume, restart)
    if resume and not checkpoint.exists:
        screen.print("nothing to resume: starting from the beginning", style="yellow")
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(contextlib.closing(one)) for one in _logs(log or ())]
        host = _host(base, compile, weights, screen)
        prepared, problems = _prepare(runs, host, screen, many=manifest is not None)
        results = _train(host, prepared, slots, checkpoint, resume, save_every, logs, screen)
    kept = _keep(host, runs, results, problems, store, half)
    checkpoint.remove()
    if manifest is not None:
        show_summary(screen, kept, store.root)
    elif kept[0].ok:
        show_result(screen, kept[0], prepared[0])
    else:
        raise RunError(kept[0].problem)
    if as_json:
        documents = [result.document() for result in kept]
        output.document(documents if manifest is not None else documents[0])
    if not all(result.ok for result in kept):
        raise typer.Exit(1)


_FLAGS = ("class_weights", "pretrain_on_text", "skip_bad_rows")
_SETTINGS = frozenset(
    (
        "task method head pool text pair label format encoding val val_size test train_size lr epochs "
        "max_steps batch_size max_length long warmup weight_decay decay clip eval_every patience metric seed "
        "pretrain_epochs "
    ).split()
)


def _runs(data: str | None, name: str | None, manifest: Path | None, given: Mapping[str, Any]) -> tuple[list[Run], str]:
    """The runs that were asked for, and the name of their checkpoint."""
    from inlay.training.manifest import read_manifest
    from inlay.training.run import data_name, make_run

    if manifest is not None:
        if data is not None or name is not None or given:
            setting = next(iter(given), "name")
            option = {"stratify": "plain", "dropout": "no-dropout"}.get(setting, setting.replace("_", "-"))
            extra = "DATA" if data is not None else f"--{option}"
            raise typer.BadParameter(f"{extra} does not go with --manifest; write it there, under [defaults]")
        # two manifests of one name are two trainings
        return read_manifest(manifest), f"{manifest.stem}-{sha256(bytes(manifest.resolve())).hexdigest()[:8]}"
    if data is None:
        raise typer.BadParameter("give DATA, or --manifest")
    name = name or data_name(data)
    return [make_run({"data": data, "name": name, **given})], name


def _settle(checkpoint: Checkpoint, resume: bool, restart: bool) -> None:
    if resume and restart:
        raise typer.BadParameter("--resume and --restart contradict each other")
    if restart:
        checkpoint.remove()
    elif checkpoint.exists and not resume:
        raise RunError(
            "a training of this name was stopped before its end; --resume goes on with it, --restart forgets it"
        )


def _logs(specs: Sequence[str]) -> Iterator[Log]:
    from inlay.training.logs import make

    return (make(spec) for spec in specs)


def _host(base: str | None, compile: bool | None, weights: str | None, screen: Console) -> Host:
    from inlay.engine.host import Host

    host = Host(base, compile=compile, weights=weights)
    dtype = str(host.base.dtype).removeprefix("torch.")
    where = host.base.device.type + ("" if dtype == "float32" else f", {host.base.form or dtype}")
    screen.print(f"base: {host.base.name}, {host.base.sites.size:,} parameters ({where})", soft_wrap=True)
    return host


def _prepare(
    runs: Sequence[Run], host: Host, screen: Console, many: bool
) -> tuple[dict[int, Prepared], dict[int, str]]:
    from inlay.cli.progress import show_data
    from inlay.training.prepare import prepare

    prepared: dict[int, Prepared] = {}
    problems: dict[int, str] = {}
    for i, run in enumerate(runs):
        try:
            prepared[i] = prepare(run, host)
        except InlayError as error:
            if not many:
                raise
            problems[i] = str(error)
            screen.print(f"{run.name}: cannot be trained, see below", style="red")
            continue
        if many:
            rows = f"{len(prepared[i].train.examples):,} rows"
            screen.print(f"{run.name}: {prepared[i].task.name}, {rows}, {prepared[i].method.spec}")
        else:
            show_data(screen, prepared[i], host)
    return prepared, problems


def _train(
    host: Host,
    prepared: dict[int, Prepared],
    slots: int | None,
    checkpoint: Checkpoint,
    resume: bool,
    save_every: float,
    logs: Sequence[Log],
    screen: Console,
) -> dict[int, Result]:
    from inlay.cli.progress import Progress
    from inlay.training.api import train_prepared

    deciding = {data.run.name: data.metric for data in prepared.values()}
    try:
        with _default_interrupt(), Progress(screen, len(prepared), deciding) as progress:
            return train_prepared(host, prepared, slots, [progress, *logs], checkpoint, resume, save_every)
    except KeyboardInterrupt:
        if checkpoint.exists:
            arguments = [a for a in sys.argv[1:] if a not in ("--resume", "--restart")]
            again = shlex.join(["inlay", *arguments, "--resume"])
            screen.print(f"\nstopped; what is done is saved. To go on:\n  {again}", soft_wrap=True)
        else:
            screen.print("\nstopped before anything could be saved")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def _default_interrupt() -> Iterator[None]:
    """Let the loop have Ctrl-C, which it takes over from Python alone: it finishes the step and saves."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _keep(
    host: Host,
    runs: Sequence[Run],
    results: Mapping[int, Result],
    problems: Mapping[int, str],
    store: Library,
    half: bool,
) -> list[Result]:
    """Put what was trained into the library."""
    from inlay.training.api import failed, keep

    kept: list[Result] = []
    for i, run in enumerate(runs):
        result = results[i] if i in results else failed(run, i, problems[i])
        kept.append(keep(result, store, host.base, half) if result.ok else result)
    return kept
