"""CoNLL and CoNLL-U."""

from __future__ import annotations

import pytest

from inlay.data.record import Skipped
from inlay.data.source import open_source

UD = """# sent_id = 1
# text = Im Haus ging's.
1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tin\tin\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\tCase=Dat|Gender=Neut\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\tNN\tCase=Dat\t4\tobl\t_\t_
4\tging\tgehen\tVERB\tVVFIN\t_\t0\troot\t_\tSpaceAfter=No
4.1\tes\tes\tPRON\t_\t_\t_\t_\t4:nsubj\t_
5\t's\tes\tPRON\t_\t_\t4\tnsubj\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t$.\t_\t4\tpunct\t_\t_

# sent_id = 2
1\t10 000\t10 000\tNUM\tCARD\t_\t0\troot\t_\t_
"""


def source(tmp_path, name, content, **options):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    return open_source(path, **options)


def rows(opened):
    return [dict(record.fields) for record in opened.records()]


def lines(opened):
    return [int(record.place.rpartition(":")[2]) for record in opened.records()]


def test_columns_with_spaces(tmp_path):
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
    opened = source(tmp_path, "eng.train.conll", text)
    assert opened.hints == {"task": "tagging", "tokens": "tokens", "tags": "tags"}
    assert rows(opened) == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["Peter"], "tags": ["B-PER"]},
    ]
    assert lines(opened) == [3, 7]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_columns_with_tabs(end, tmp_path):
    text = "New York\tB-LOC\nis\tO\n\n#\tO\n1\tO\n".replace("\n", end)
    assert rows(source(tmp_path, "a.conll", text)) == [
        {"tokens": ["New York", "is"], "tags": ["B-LOC", "O"]},
        {"tokens": ["#", "1"], "tags": ["O", "O"]},
    ]


def test_comments_are_not_words(tmp_path):
    text = "# id = 1\n# a longer comment here\n#tag O\nnice O\n# O\n\n# id = 2\nBob B-PER\n"
    assert [row["tokens"] for row in rows(source(tmp_path, "a.conll", text))] == [["#tag", "nice", "#"], ["Bob"]]


def test_words_alone(tmp_path):
    opened = source(tmp_path, "a.conll", "Bob\nsleeps\n\nAnna\nworks\n")
    assert (opened.columns, opened.hints) == (("tokens",), {"task": "tagging", "tokens": "tokens"})
    assert rows(opened) == [{"tokens": ["Bob", "sleeps"]}, {"tokens": ["Anna", "works"]}]
    assert opened.notes == ("one column: words without tags",)


def test_a_bad_line_costs_its_sentence(tmp_path):
    skipped = Skipped()
    opened = source(tmp_path, "a.conll", "Bob B-PER\nsleeps\nwell\n\nAnna B-PER\nworks O\n\nx y z\n\nlast O\n")
    assert [record.fields["tokens"] for record in opened.records(skipped)] == [["Anna", "works"], ["last"]]
    assert [message.split(": ")[0].rpartition(":")[2] for message in skipped.first] == ["2", "8"]


def test_universal_dependencies(tmp_path):
    opened = source(tmp_path, "de_gsd-ud-dev.conllu", UD)
    assert opened.hints == {"task": "tagging", "tokens": "tokens", "tags": "upos"}
    first, second = rows(opened)
    assert first["tokens"] == ["in", "dem", "Haus", "ging", "'s", "."]
    assert first["upos"] == ["ADP", "DET", "NOUN", "VERB", "PRON", "PUNCT"]
    assert (first["feats"][1], first["head"][3], first["deprel"][3]) == ("Case=Dat|Gender=Neut", "0", "root")
    assert second["tokens"] == ["10 000"]
    assert lines(opened) == [4, 13]


def test_universal_dependencies_as_the_package_conllu_reads_them(tmp_path):
    conllu = pytest.importorskip("conllu")
    theirs = [[token for token in sentence if isinstance(token["id"], int)] for sentence in conllu.parse(UD)]
    ours = rows(source(tmp_path, "a.conllu", UD))
    for key, name in {"form": "tokens", "lemma": "lemma", "upos": "upos", "deprel": "deprel"}.items():
        assert [[token[key] for token in sentence] for sentence in theirs] == [row[name] for row in ours]


def test_a_bad_token_costs_its_sentence(tmp_path):
    skipped = Skipped()
    opened = source(tmp_path, "a.conllu", UD.replace("3\tHaus", "4\tHaus"))
    assert [record.fields["tokens"] for record in opened.records(skipped)] == [["10 000"]]
    assert skipped.first[0].endswith("a.conllu:6: token '4' where number 3 is expected; a blank line ends a sentence")
