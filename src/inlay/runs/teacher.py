"""`--teacher NAME`: a run that also learns from the answers of an ensemble, or of one adapter, to its rows.

A member does not answer for a text that it has learned from: there it knows the label, and not how hard the text is.
What it has learned from follows from its card: the settings of its run split the same rows the same way, and the hash
of its data confirms it. An ensemble trained on the same file (`--ensemble`) has for each row one member that left it
out; a text that no member has seen is labelled by all of them. Validation rows keep their labels.

The answers are computed once, before the training. A run is another one if its teacher is another, if the members
label other rows, or if the unlabelled texts are others (`Prepared.teacher`).
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
"""The teacher's name in the host while it answers."""
_CHUNK = 20_000
"""Examples that are answered at once."""

Seen = set[Hashable] | None
"""The subjects that a member has learned from; None if this is unknown."""


def prepare_taught(
    run: Run, host: Host, library: Library | None = None, reading: Callable[[Run], Known] = read
) -> Prepared:
    """`prepare`; if a run has a teacher, its rows get the teacher's answers.

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
    examples = [*data.train.examples, *texts]
    members_of = [_members_without(seen, data.task.subject(example)) for example in examples]
    count = len(data.train.examples)
    taught, kept = sum(map(bool, members_of[:count])), [i for i in range(count, len(examples)) if members_of[i]]
    if not taught and not kept:
        raise RunError(
            f"the teacher {entry.ref} has learned from all these rows; give texts that it has not seen (--unlabelled)"
        )
    # a text that all members have learned from says nothing new
    examples = [*examples[:count], *(examples[i] for i in kept)]
    members_of = [*members_of[:count], *(members_of[i] for i in kept)]
    answers = _answers(host, teacher, examples, members_of)
    task, limit = soft_task(data.task), row_limit(host, data.task.max_length)
    encoder = Encoder(data.task, load_tokenizer(host.base), data.labels, limit)
    new = Split(examples[count:], encoder.rows(examples[count:]))
    about = {"ref": entry.ref, "sha256": entry.sha256, "rows": taught, "unlabelled": len(kept)}
    return replace(
        data,
        run=run,  # with its own settings: those that depend on the number of rows depend on that of all rows
        task=task,
        train=Split(data.train.examples, _soft_rows(data.train, task, answers[:count], data)),
        unlabelled=Split(new.examples, _soft_rows(new, task, answers[count:], data)) if kept else None,
        teacher={**about, "texts": new.content if kept else "", "asked": _digest(members_of)},
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
        kinds = ("single texts", "pairs of texts")
        pair = bool(data.columns.pair)
        raise RunError(f"the teacher {ref} was trained on {kinds[not pair]}, and the data has {kinds[pair]}")


def _unlabelled(run: Run, data: Prepared) -> tuple[list[Example], list[str]]:
    """The texts of the file, each once, without those that are among the run's own rows."""
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
    examples, note = read_examples(source, data.task, given, bad, labelled=False, pairs=bool(data.columns.pair))
    splits = [split for split in (data.train, data.validation, data.test) if split is not None]
    own_subjects = {data.task.subject(example) for split in splits for example in split.examples}
    example_of: dict[Hashable, Example] = {}
    for example in examples:
        if (subject := data.task.subject(example)) not in own_subjects:
            example_of.setdefault(subject, example)
    # --text and --pair name columns of the data, which this file should have too
    notes = [f"{source.name}: {note.partition(' (pass ')[0]}"] if note else []
    if isinstance(bad, Skipped) and bad.note:
        notes.append(f"{source.name}: {bad.note}")
    if left_out := len(examples) - len(example_of):
        notes.append(f"{source.name}: left out {left_out:,} texts that occur twice or are among the data's own rows")
    return list(example_of.values()), notes


def _seen(members: Sequence[Adapter], known: Known, task: Task) -> list[Seen]:
    """The subjects that each member has learned from."""
    files: dict[str, Known | None] = {}

    def read_once(run: Run) -> Known | None:
        key = json.dumps(run.model_dump(exclude={"name", "seed", "fold"}), sort_keys=True, default=str)
        if key not in files:
            files[key] = None
            with contextlib.suppress(InlayError):
                files[key] = read(run)
        return files[key]

    return [_learned_from(member, known, task, read_once) for member in members]


def _learned_from(member: Adapter, known: Known, task: Task, read_once: Callable[[Run], Known | None]) -> Seen:
    """From the rows at hand if its data has the same hash; else from the file that its card names."""
    try:
        run = from_config(member.about.get("config") or {})
    except InlayError:
        return None
    for reading in (lambda _: known, read_once):
        read_again = reading(run)
        if read_again is None:
            continue
        train, validation = read_again.train, list[Example]()
        try:
            if not member.about.get("folds"):  # else it has learned from all of them
                parts = read_again.train, read_again.validation, len(read_again.test)
                train, validation, _ = split_known(run, task, *parts)
        except InlayError:
            continue
        if content([*train, *validation, *read_again.test]) == member.about.get("data"):
            return {task.subject(example) for example in train}
    return None


def _members_without(seen: Sequence[Seen], subject: Hashable) -> list[int]:
    """The numbers of the members that may answer for a text."""
    return [number for number, subjects in enumerate(seen) if subjects is None or subject not in subjects]


def _answers(
    host: Host, teacher: Adapter | Ensemble, examples: Sequence[Example], members_of: Sequence[Sequence[int]]
) -> list[Answer | None]:
    """The joint answer of the members chosen for each example; None if there are none."""
    host.load(teacher, _NAME)
    try:
        translator = host.translator(_NAME)
        members, weights = translator.members or (translator,), translator.weights or (1,)
        joint: list[Answer | None] = []
        for begin in range(0, len(examples), _CHUNK):
            chunk = range(begin, min(begin + _CHUNK, len(examples)))
            bare = {i: replace(examples[i], target=None) for i in chunk}
            pairs = [(number, i) for number in range(len(members)) for i in chunk if number in members_of[i]]
            encoded = encode(host, [(members[number].name, bare[i]) for number, i in pairs])
            decoded = decode(host, encoded, run_encoded(host, encoded), AnswerOptions())
            answer_of = dict(zip(pairs, decoded, strict=True))
            for i in chunk:
                answers = [answer_of[number, i] for number in members_of[i]]
                counts = [weights[number] for number in members_of[i]]
                joint.append(translator.task.together(answers, counts, translator.labels) if answers else None)
        return joint
    finally:
        host.unload(_NAME)


def _soft_rows(part: Split, task: Task, answers: Sequence[Answer | None], data: Prepared) -> list[Row]:
    return [replace(row, target=soft_target(task, row.target, answers[row.example], data.labels)) for row in part.rows]


def _digest(members_of: Sequence[Sequence[int]]) -> str:
    """A hash of which members answer for which example."""
    return hashlib.blake2b(json.dumps(members_of).encode(), digest_size=16).hexdigest()


def _notes(ref: str, members: int, rows: int, taught: int, new: int, texts: int) -> list[str]:
    teacher = f"{ref} ({members} members)" if members > 1 else ref
    also = f", and {new:,} unlabelled texts" if new else ""
    notes = [f"teacher: {teacher} labels {taught:,} of {rows:,} rows, each by members that have not seen it{also}"]
    if texts > new:
        notes.append(f"left out {texts - new:,} unlabelled texts that all members have learned from")
    return notes


def _warnings(ref: str, seen: Sequence[Seen]) -> list[str]:
    unknown = sum(subjects is None for subjects in seen)
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
    learned = set[Hashable]().union(*(subjects for subjects in seen if subjects is not None))
    leaked = sum(data.task.subject(example) in learned for example in tested)
    if not leaked:
        return []
    return [
        f"The teacher {ref} has learned from {leaked:,} of the {len(tested):,} test rows, so the test score is too "
        "good. Train the teacher with the same test rows (--test, --test-size)."
    ]
