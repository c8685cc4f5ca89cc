"""`--teacher NAME`: a run that also learns from what an ensemble, or one adapter, says of its rows.

A member says nothing of a text that it has learned from: there it knows the label, and not how hard the text is. What
it has learned from follows from its card: the settings of its run split the same rows in the same way, and the hash of
its data confirms it. Of an ensemble that was trained on the same file (`--ensemble`) each row has one member that left
it out; a text that nobody has seen is labelled by all of them. Validation rows keep their labels.

What the teacher says is computed once, before the training. The run is another one if the teacher is another, if its
members label other rows, or if the unlabelled texts are others (`Prepared.teacher`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from inlay.base.load import load_tokenizer
from inlay.data.record import Bad, Skipped, several, stop_or_skip
from inlay.data.source import open_source
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.host import Host
from inlay.engine.predict import decode, encode, row_limit
from inlay.engine.predict import run as run_encoded
from inlay.errors import AdapterError, InlayError, RunError
from inlay.library.adapter import Adapter
from inlay.library.ensemble import Ensemble
from inlay.library.library import Library
from inlay.runs.encoded import Encoder, content
from inlay.runs.prepare import Known, Prepared, Split, prepare, read, read_examples
from inlay.runs.run import Run, from_config
from inlay.runs.splits import split_known
from inlay.tasks import Answer, Example, Row, Task
from inlay.tasks import parse as parse_task
from inlay.tasks._soft import soft_target, soft_task

_NAME = "teacher#"
"""Of the teacher in the host while it is asked."""
_CHUNK = 20_000
"""Examples that are asked about at once."""

Seen = set[Hashable] | None
"""The subjects that a member has learned from; None where nobody knows."""


def prepare_taught(
    run: Run, host: Host, library: Library | None = None, reading: Callable[[Run], Known] = read
) -> Prepared:
    """`prepare`, and where a run has a teacher, its rows with what the teacher says of them.

    Args:
        library: where the teacher is; the default one if there is none.
    """
    if run.teacher is None:
        if run.unlabelled is not None:
            raise RunError("unlabelled (--unlabelled) needs a teacher (--teacher) that labels the texts")
        return prepare(run, host, reading)
    library = Library() if library is None else library
    entry = library.find(run.teacher)
    teacher = library.read(entry)
    _refuse_other_base(entry.ref, teacher, host)
    known = reading(run)
    data = prepare(run, host, lambda _: known)
    _refuse_other_task(entry.ref, teacher, data)
    texts, notes = _unlabelled(run, data)
    members = teacher.members if isinstance(teacher, Ensemble) else (teacher,)
    seen = _seen(members, known, data.task)
    every = [*data.train.examples, *texts]
    asked = [_unseen(seen, data.task.subject(example)) for example in every]
    count = len(data.train.examples)
    taught, kept = sum(map(bool, asked[:count])), [i for i in range(count, len(every)) if asked[i]]
    if not taught and not kept:
        raise RunError(
            f"the teacher {entry.ref} has learned from all these rows; give texts that it has not seen (--unlabelled)"
        )
    # a text that all members have learned from says nothing new
    every, asked = [*every[:count], *(every[i] for i in kept)], [*asked[:count], *(asked[i] for i in kept)]
    answers = _answers(host, teacher, every, asked)
    task, limit = soft_task(data.task), row_limit(host, data.task.max_length)
    new = Split(every[count:], Encoder(data.task, load_tokenizer(host.base), data.labels, limit).rows(every[count:]))
    rows = [_soft(part, task, said, data) for part, said in ((data.train, answers[:count]), (new, answers[count:]))]
    about = {"ref": entry.ref, "sha256": entry.sha256, "rows": taught, "unlabelled": len(kept)}
    return replace(
        data,
        run=run,  # as it was given: what follows from the number of rows follows from that of all of them
        task=task,
        train=Split(data.train.examples, rows[0]),
        unlabelled=Split(new.examples, rows[1]) if kept else None,
        teacher={**about, "texts": new.content if kept else "", "asked": _digest(asked)},
        notes=[*data.notes, *notes, *_notes(entry.ref, len(members), count, taught, len(kept), len(texts))],
        warnings=[*data.warnings, *_warnings(entry.ref, seen), *_leaked(entry.ref, seen, data)],
    )


def _refuse_other_base(ref: str, teacher: Adapter | Ensemble, host: Host) -> None:
    try:
        host.refuse_other_base(teacher.base, teacher.base_name)
    except AdapterError as error:
        raise RunError(f"the teacher {ref}: {error}") from None


def _refuse_other_task(ref: str, teacher: Adapter | Ensemble, data: Prepared) -> None:
    soft_task(data.task)
    kind = parse_task(teacher.task).name if teacher.task else ""
    if kind != data.task.name:
        raise RunError(f"the teacher {ref} is for {kind or 'no task'}, and the data for {data.task.name}")
    if tuple(teacher.labels) != data.labels:
        mine, theirs = (", ".join(labels[:5]) for labels in (data.labels, teacher.labels))
        only = sorted(set(teacher.labels) ^ set(data.labels))
        differ = f"; {only[0]!r} is in one of them alone" if only else ""
        raise RunError(f"the teacher {ref} knows the labels {theirs}, and the data has {mine}{differ}")
    columns = teacher.columns if isinstance(teacher, Ensemble) else teacher.about.get("columns")
    if columns and bool(columns.get("pair")) != bool(data.columns.pair):
        what = ("single texts", "pairs of texts")
        pair = bool(data.columns.pair)
        raise RunError(f"the teacher {ref} was trained on {what[not pair]}, and the data has {what[pair]}")


def _unlabelled(run: Run, data: Prepared) -> tuple[list[Example], list[str]]:
    """The texts of the file, each once, but for those that are among the run's own rows."""
    if run.unlabelled is None:
        return [], []
    source = open_source(run.unlabelled, format=run.format, encoding=run.encoding)
    source = replace(source, hints={part: name for part, name in source.hints.items() if part != "label"})
    named = {part: getattr(data.columns, part) for part in ("text", "pair")}
    given = {
        part: name
        for part, name in named.items()
        if name and set(several(name, source.columns)).issubset(source.columns)
    }
    bad: Bad = Skipped() if run.skip_bad_rows else stop_or_skip
    read, note = read_examples(source, data.task, given, bad, labelled=False, pairs=bool(data.columns.pair))
    own = [*data.train.examples, *data.validation.examples, *(data.test.examples if data.test is not None else ())]
    taken = {data.task.subject(example) for example in own}
    found: dict[Hashable, Example] = {}
    for example in read:
        if (subject := data.task.subject(example)) not in taken:
            found.setdefault(subject, example)
    # --text and --pair are for the data, whose names this file should have
    notes = [f"{source.name}: {note.partition(' (pass ')[0]}"] if note else []
    if isinstance(bad, Skipped) and bad.note:
        notes.append(f"{source.name}: {bad.note}")
    if left_out := len(read) - len(found):
        notes.append(f"{source.name}: left out {left_out:,} texts that occur twice or are among the data's own rows")
    return list(found.values()), notes


def _seen(members: Sequence[Adapter], known: Known, task: Task) -> list[Seen]:
    """What each member has learned from."""
    files: dict[str, Known | None] = {}

    def own(run: Run) -> Known | None:
        key = json.dumps(run.model_dump(exclude={"name", "seed", "fold"}), sort_keys=True, default=str)
        if key not in files:
            files[key] = None
            with contextlib.suppress(InlayError):
                files[key] = read(run)
        return files[key]

    return [_learned_from(member, known, task, own) for member in members]


def _learned_from(member: Adapter, known: Known, task: Task, own: Callable[[Run], Known | None]) -> Seen:
    """By the rows at hand if its data has the same hash; else by the file that its card names."""
    try:
        run = from_config(member.about.get("config") or {})
    except InlayError:
        return None
    for reading in (lambda _: known, own):
        given = reading(run)
        if given is None:
            continue
        train, validation = given.train, list[Example]()
        try:
            if not member.about.get("folds"):  # else it has learned from all of them
                train, validation, _ = split_known(run, task, given.train, given.validation, len(given.test))
        except InlayError:
            continue
        if content([*train, *validation, *given.test]) == member.about.get("data"):
            return {task.subject(example) for example in train}
    return None


def _unseen(seen: Sequence[Seen], subject: Hashable) -> list[int]:
    """The members that may say something of a text."""
    return [number for number, own in enumerate(seen) if own is None or subject not in own]


def _answers(
    host: Host, teacher: Adapter | Ensemble, examples: Sequence[Example], asked: Sequence[Sequence[int]]
) -> list[Answer | None]:
    """What the members that are asked about an example say of it together; None if there are none."""
    host.load(teacher, _NAME)
    try:
        whole = host.translator(_NAME)
        members, weights = whole.members or (whole,), whole.weights or (1,)
        found: list[Answer | None] = []
        for begin in range(0, len(examples), _CHUNK):
            chunk = range(begin, min(begin + _CHUNK, len(examples)))
            bare = {i: replace(examples[i], target=None) for i in chunk}
            pairs = [(number, i) for number in range(len(members)) for i in chunk if number in asked[i]]
            encoded = encode(host, [(members[number].name, bare[i]) for number, i in pairs])
            said = dict(zip(pairs, decode(host, encoded, run_encoded(host, encoded), AnswerOptions()), strict=True))
            for i in chunk:
                own = [said[number, i] for number in asked[i]]
                counts = [weights[number] for number in asked[i]]
                found.append(whole.task.together(own, counts, whole.labels) if own else None)
        return found
    finally:
        host.unload(_NAME)


def _soft(part: Split, task: Task, said: Sequence[Answer | None], data: Prepared) -> list[Row]:
    return [replace(row, target=soft_target(task, row.target, said[row.example], data.labels)) for row in part.rows]


def _digest(asked: Sequence[Sequence[int]]) -> str:
    """A hash of who is asked about what."""
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()


def _notes(ref: str, members: int, rows: int, taught: int, new: int, texts: int) -> list[str]:
    who = f"{ref} ({members} members)" if members > 1 else ref
    more = f", and {new:,} unlabelled texts" if new else ""
    found = [f"teacher: {who} labels {taught:,} of {rows:,} rows, each by members that have not seen it{more}"]
    if texts > new:
        found.append(f"left out {texts - new:,} unlabelled texts that all members have learned from")
    return found


def _warnings(ref: str, seen: Sequence[Seen]) -> list[str]:
    unknown = sum(own is None for own in seen)
    if not unknown:
        return []
    who = f"{unknown} of the {len(seen)} members of the teacher {ref}" if len(seen) > 1 else f"the teacher {ref}"
    return [
        f"Nobody knows which rows {who} learned from: the data is not the same, and theirs cannot be read. Rows that "
        "they have seen may be among those they label, with answers that are too sure."
    ]


def _leaked(ref: str, seen: Sequence[Seen], data: Prepared) -> list[str]:
    """A warning if the teacher has learned from rows that test the run."""
    tested = data.test.examples if data.test is not None else []
    learned = set[Hashable]().union(*(own for own in seen if own is not None))
    found = sum(data.task.subject(example) in learned for example in tested)
    if not found:
        return []
    return [
        f"The teacher {ref} has learned from {found:,} of the {len(tested):,} test rows, so the test score is too "
        "good. Train the teacher with the same test rows (--test, --test-size)."
    ]
