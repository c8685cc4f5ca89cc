"""`inlay retrain`: the tasks of a library trained again on another base, compared with what they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from inlay.cli import options, output, preflight
from inlay.cli.help import DATA, METHOD, OUTPUT, argument
from inlay.cli.option_groups import expand_groups
from inlay.cli.train import open_host, open_logs, settle, train_shown
from inlay.cli.train_display import decimals
from inlay.errors import RunError

if TYPE_CHECKING:
    from inlay.library.cards import Entry
    from inlay.library.library import Library
    from inlay.runs.prepare import Prepared
    from inlay.training.retrain import Change, Old


class RetrainOptions(NamedTuple):
    """How to train, and where the tasks are."""

    slots: options.Slots = None
    compile: options.Compile = None
    resume: options.Resume = False
    restart: options.Restart = False
    save_every: options.SaveEvery = 60
    library: options.Library = None
    log: options.Log = None
    half: options.Half = False
    as_json: output.AsJson = False


@expand_groups(how=RetrainOptions)
def retrain(
    names: Annotated[
        list[str] | None, argument("NAME...", "The tasks to retrain: sms, or sms@prod for one version.")
    ] = None,
    every: Annotated[bool, DATA.flag("--all", "Retrain the newest version of every task.")] = False,
    skip: Annotated[bool, DATA.flag("--skip", "Skip tasks that cannot be retrained.")] = False,
    base: Annotated[str | None, METHOD.option("BASE", "The new pretrained model: a hub name or a folder.")] = None,
    switch: Annotated[
        bool, OUTPUT.flag("--switch", "Make the new adapters the newest versions in the library.")
    ] = False,
    switch_better: Annotated[
        bool, OUTPUT.flag("--switch-better", "Like --switch, but only for tasks that did not get worse.")
    ] = False,
    tolerance: Annotated[
        float | None, OUTPUT.option("X", "With --switch-better: accept a drop of up to X.  [default: 0]", min=0)
    ] = None,
    alias: Annotated[
        list[str] | None, options.alias("With --switch or --switch-better: move this alias as well.")
    ] = None,
    undo: Annotated[bool, OUTPUT.flag("--undo", "Undo the last switch.")] = False,
    to: Annotated[
        str | None, OUTPUT.option("LIBRARY", "Where to save the new adapters.  [default: LIBRARY-BASE]")
    ] = None,
    *,
    how: RetrainOptions,
) -> None:
    """Retrain the tasks of a library on another base, and compare. Nothing is switched without --switch.

    Examples:
        inlay retrain --all --base BAAI/bge-small-en-v1.5
        inlay retrain sms --base BAAI/bge-small-en-v1.5 --switch-better --tolerance 0.01 --alias prod
    """
    switches = switch or switch_better
    wrong = {
        "give NAMEs, or --all" + (", not both" if every else ""): bool(names) == every,
        "--undo can only be combined with NAMEs or --all": undo and (base or switches or to or skip),
        "--base is missing: give the base to train on": not undo and base is None,
        "--switch and --switch-better cannot be combined": switch and switch_better,
        "--tolerance needs --switch-better": tolerance is not None and not switch_better,
        "--alias needs --switch or --switch-better": alias and not switches,
        "--resume and --restart cannot be combined": how.resume and how.restart,
    }
    preflight.refuse(wrong)
    from inlay.library.library import Library

    screen, store = output.console(how.as_json), Library(how.library)
    if undo:
        _undo(store, names or None, screen, how.as_json)
        return
    preflight.check_base(base)
    preflight.check_logs(how.log)
    for name in names or ():
        store.find(name)
    from inlay.training.retrain import candidates_of, move_aliases, read
    from inlay.training.retrain import switch as switch_to

    olds, problems = read(store, names or None)
    candidates = Library(to or candidates_of(store, str(base)))
    if candidates.root == store.root:
        raise RunError(f"--to {candidates.root} is the library itself: a new version there would be used at once")
    changes, here = _train(olds, problems, candidates, str(base), skip, how, screen)
    for entry in here if switch else ():
        move_aliases(store, entry, alias or ())
    for i, change in enumerate(changes):
        if change.new is not None and (switch or (switch_better and change.is_good(tolerance or 0.0))):
            changes[i] = switch_to(store, candidates, change, alias or ())
    _show(screen, changes, store, candidates)
    tasks = [change.document() for change in changes]
    left_out = [{"name": name, "problem": problem} for name, problem in problems.items()]
    places = {"base": str(base), "library": store.root, "candidates": candidates.root}
    output.document({**places, "tasks": tasks, "left_out": left_out}, how.as_json)
    if any(change.new is None for change in changes):
        raise typer.Exit(1)


def _train(
    olds: Sequence[Old],
    problems: dict[str, str],
    candidates: Library,
    base: str,
    skip: bool,
    how: RetrainOptions,
    screen: output.Console,
) -> tuple[list[Change], list[Entry]]:
    """Every task before and after, and the entries that are on the new base already."""
    from inlay.training.checkpoint import Checkpoint
    from inlay.training.parallel import ALONE
    from inlay.training.retrain import Change, begun, finished, is_on, keep, prepare_all

    checkpoint = Checkpoint(candidates.local / "runs" / "retrain")
    with checkpoint.alone():
        settle(checkpoint, how.resume, how.restart, screen)
        with open_logs(how.log) as logs:
            host = open_host(base, how.compile, None, screen)
            here = [old.entry for old in olds if is_on(old.entry, host.base)]
            olds, stopped = [old for old in olds if old.entry not in here], begun(checkpoint)
            done = {name: e for name, e in finished(candidates, olds, host.base).items() if name not in stopped}
            work = prepare_all((old for old in olds if old.entry.name not in done), host, stopped, problems)
            _show_plan(screen, here, done, work, problems)
            if problems and not skip:
                tasks = "one task" if len(problems) == 1 else f"{len(problems)} tasks"
                raise RunError(f"{tasks} cannot be retrained, see above; pass --skip to leave them out")
            prepared = {i: data for i, (_, data) in enumerate(work)}
            arguments = (host, prepared, how.slots, checkpoint, how.resume, how.save_every, logs, screen, ALONE)
            results = train_shown(*arguments) if prepared else {}
        failed: dict[str, str] = {}
        for (old, _), result in zip(work, results.values(), strict=True):
            if result.ok:
                done[old.entry.name] = keep(result, old, candidates, host.base, how.half)
            else:
                failed[old.entry.name] = result.problem
        checkpoint.remove()
    ended = [old.entry for old in olds if old.entry.name in done or old.entry.name in failed]
    return [Change(entry, done.get(entry.name), failed.get(entry.name, "")) for entry in ended], here


def _show_plan(
    screen: output.Console,
    here: Sequence[Entry],
    done: Mapping[str, Entry],
    work: Sequence[tuple[Old, Prepared]],
    problems: Mapping[str, str],
) -> None:
    for entry in here:
        screen.print(f"{entry.ref}: already on this base", style="dim", soft_wrap=True)
    for name, entry in done.items():
        screen.print(f"{name}: already trained, as {entry.ref} of the candidates", style="dim", soft_wrap=True)
    for old, data in work:
        rows = f"{len(data.train.examples):,} rows"
        screen.print(f"{old.entry.ref}: {data.task.name}, {rows}, {data.method.spec}", soft_wrap=True)
    for name, problem in problems.items():
        screen.print(f"{name}: cannot be retrained: {problem}", style="red", soft_wrap=True)


def _show(screen: output.Console, changes: Sequence[Change], store: Library, candidates: Library) -> None:
    from inlay.training.retrain import parameters

    if not changes:
        screen.print("nothing to compare")
        return
    table = output.table("task", "parameters", "metric", "old", "new", "difference", right=("old", "new", "difference"))
    for change in changes:
        sizes = [f"{n:,}" for n in (parameters(change.old), parameters(change.new)) if n is not None]
        first = (change.old.ref, " > ".join(dict.fromkeys(sizes)), change.metric if change.new else "failed")
        table.add_row(*first, *_cells(*change.values("validation")))
        if change.new is not None and change.values("test") != (None, None):
            table.add_row("", "", f"{change.metric}, test", *_cells(*change.values("test")))
    screen.print()
    screen.print(table)
    screen.print()
    for change in changes:
        if change.problem:
            screen.print(f"{change.old.name} failed: {change.problem}", style="red", soft_wrap=True)
    trained = sum(change.new is not None for change in changes)
    worse = sum((change.loss or 0.0) > 0 for change in changes)
    switched = [(change.old.name, change.switched) for change in changes if change.switched is not None]
    screen.print(
        f"{trained} of {len(changes)} tasks trained, {worse} worse; saved to {candidates.root}", soft_wrap=True
    )
    if switched:
        refs = ", ".join(entry.ref for _, entry in switched)
        screen.print(f"switched in {store.root}: {refs}; --undo reverts this", soft_wrap=True)
        stay = [f"{name}@{alias}" for name, entry in switched for alias in _staying(store, name, entry.version)]
        if stay:
            screen.print(f"aliases that did not move: {', '.join(stay)} (--alias moves them)", soft_wrap=True)
    else:
        screen.print("nothing was switched; pass --switch or --switch-better to do so", style="dim", soft_wrap=True)


def _cells(old: float | None, new: float | None) -> list[str]:
    difference = "" if old is None or new is None else f"{new - old:+.4f}"
    return [*("" if value is None else decimals(value) for value in (old, new)), difference]


def _staying(store: Library, name: str, newest: int) -> list[str]:
    return sorted(alias for alias, version in store.aliases(name, skip_damaged=True).items() if version != newest)


def _undo(store: Library, names: Sequence[str] | None, screen: output.Console, as_json: bool) -> None:
    from inlay.training.retrain import undoable

    steps, problems = undoable(store, names)
    if problems:
        raise RunError("; ".join(f"{name}: {problem}" for name, problem in problems.items()))
    documents = []
    for step in steps:
        now = step.do(store)
        moved = "".join(f", {step.entry.name}@{alias} is version {v} again" for alias, v in step.aliases.items())
        screen.print(f"{step.entry.ref} is removed: {step.entry.name} is {now} again{moved}", soft_wrap=True)
        document = {"name": step.entry.name, "removed": step.entry.ref, "newest": now}
        documents.append({**document, "aliases": dict(step.aliases)})
    if not steps:
        screen.print("nothing to undo: no newest version comes from a switch")
    output.document({"library": store.root, "tasks": documents}, as_json)
