"""The page of claims: every line has a verdict that fits what was measured, and a command that can be run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.test_printed_commands import parsed

from inlay import recipes
from inlay.runs.run import Run

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")
HEADER = "| claim | paper | measured | verdict | command |"
UNTESTED = ("not tested yet", "cannot be tested here")
VERDICTS = (*UNTESTED, "holds", "does not hold", "in part", "not shown")
ON_ONE_SET = r"(CoLA|SST-2|size 64)\b.* (holds?|does not|way)"
POINTERS = ("as above", "as for ", "[below](")


def claims(page: str) -> list[tuple[str, ...]]:
    """The cells of every line of the tables of claims."""
    tables = [part.partition("\n\n")[0] for part in page.split(HEADER)[1:]]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


CLAIMS = claims(PAGE)
COMMANDS = sorted({line for claim in CLAIMS for line in re.findall(r"`(inlay [^`]+)`", claim[-1])})


def problem(claim: tuple[str, ...]) -> str | None:
    if len(claim) != 5 or not all(claim):
        return "five cells, none of them empty"
    _, _, measured, verdict, command = claim
    if not verdict.startswith(VERDICTS) and not re.match(ON_ONE_SET, verdict):
        return "an unknown verdict"
    if measured == "-" and not verdict.startswith(UNTESTED):
        return "a verdict without a measurement"
    if "`" not in command and not command.startswith(POINTERS):
        return "no command"
    return None


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0][:60])
def test_a_verdict_has_a_measurement_and_a_command(claim: tuple[str, ...]):
    assert problem(claim) is None


def test_a_verdict_out_of_the_blue_would_be_noticed():
    assert problem(("c", "80.4", "-", "holds", "`inlay recipe list`")) == "a verdict without a measurement"
    assert problem(("c", "80.4", "80.0", "surely", "`inlay recipe list`")) == "an unknown verdict"
    assert problem(("c", "80.4", "80.0", "holds", "later")) == "no command"


def test_all_papers_and_all_recipes_are_on_the_page():
    assert PAGE.count(HEADER) == 4
    assert set(re.findall(r"inlay recipe run ([a-z0-9-]+)", PAGE)) == set(recipes.names())


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_can_be_run(line: str):
    options = parsed(line).params
    named = re.match(r"inlay recipe run ([a-z0-9-]+)", line)
    if named is None:
        return
    recipe = recipes.find(named[1])
    for option, known in {
        "only": {dataset.name for dataset in recipe.datasets},
        "lines": {row.name for row in recipe.rows},
    }.items():
        asked = options[option]
        assert set(asked.split(",") if isinstance(asked, str) else asked or []) <= known, option
    assert {key.partition("=")[0] for key in options["grid"] or []} <= set(Run.model_fields)
