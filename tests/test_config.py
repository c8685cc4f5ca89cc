"""The spec grammar: reading, writing, lists, and errors that say what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.bank.delta import parse, parse_list
from inlay.config import build, canonical, describe, option, split_list, split_spec
from inlay.errors import SpecError
from inlay.registry import methods


@dataclass(frozen=True, kw_only=True)
class Options:
    size: int = option(64, "a width")
    rate: float = option(0.5, "a rate")
    on: bool = option(False, "a switch")
    where: Literal["both", "attn", "ffn"] = option("both", "a place")
    top: int | None = option(None, "a number, if any")
    norms: bool | None = option(None, "a switch, if any")
    sites: str = option("q+v", "a text")


SPECS = [
    "houlsby:size=8,activation=relu,init=0.001,where=attn,share=3,norms=true,parallel=on,depth=2,layers=0-2",
    "adapterbias:share=both,l0=1e-7,low=-0.1,high=1.1,temperature=0.33,gate=2",
    "bitfit:layers=top2,mixout=0.9,mixout_unit=element",
    "norms:layers=0+2",
    "lora:rank=4,alpha=8,sites=attn.q+ffn.in",
    "finetune:top=3",
    "diffprune:target=0.01,l0=2e-8",
    "frozen:layers=1",
]


def read(text: str) -> Options:
    name, given_ = split_spec(text)
    return build(Options, name, given_)


def test_a_spec_is_a_name_and_pairs():
    assert split_spec("lora") == ("lora", {})
    assert split_spec("lora:rank=4,sites=attn.q+attn.v") == ("lora", {"rank": "4", "sites": "attn.q+attn.v"})
    assert split_spec("  lora : rank = 4 , alpha=8 ") == ("lora", {"rank": "4", "alpha": "8"})
    assert split_spec("x:path=a=b") == ("x", {"path": "a=b"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no method"),
        ("   ", "names no method"),
        (":rank=4", "names no method"),
        ("lora:", "ends with a colon"),
        ("lora: ", "ends with a colon"),
        ("lora:rank", "'rank' in 'lora:rank' is not key=value"),
        ("lora:rank=", "'rank=' in 'lora:rank=' is not key=value"),
        ("lora:=4", "'=4' in 'lora:=4' is not key=value"),
        ("lora:rank=4,", "is not key=value"),
        ("lora:rank=4,,alpha=8", "is not key=value"),
        ("lora:rank=4,rank=4", "option 'rank' is given twice"),
        ("lora:rank=4,alpha=1, rank =8", "option 'rank' is given twice"),
    ],
)
def test_a_malformed_spec_is_refused_with_the_part_that_is_wrong(text: str, problem: str):
    with pytest.raises(SpecError) as caught:
        split_spec(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", {}),
        ("x:size=8", {"size": 8}),
        ("x:size=-3", {"size": -3}),
        ("x:rate=3", {"rate": 3.0}),
        ("x:rate=1e-4", {"rate": 1e-4}),
        *((f"x:on={word}", {"on": True}) for word in ("true", "True", "yes", "on", "1")),
        *((f"x:norms={word}", {"norms": False}) for word in ("false", "FALSE", "no", "off", "0")),
        ("x:norms=auto", {"norms": None}),
        ("x:top=auto", {"top": None}),
        ("x:top=3", {"top": 3}),
        ("x:where=ffn", {"where": "ffn"}),
        ("x:sites=attn.q", {"sites": "attn.q"}),
        ("x:sites=12", {"sites": "12"}),
    ],
)
def test_values_are_read_by_the_type_of_their_field(text: str, expected: dict[str, Any]):
    found = read(text)
    assert found == Options(**expected)
    assert [type(getattr(found, key)) for key in expected] == [type(value) for value in expected.values()]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x:size=four", "x: size=four is not valid: expected a whole number"),
        ("x:size=4.5", "x: size=4.5 is not valid: expected a whole number"),
        ("x:rate=fast", "x: rate=fast is not valid: expected a number"),
        ("x:on=maybe", "x: on=maybe is not valid: expected true or false"),
        ("x:on=auto", "x: on=auto is not valid: expected true or false"),
        ("x:norms=maybe", "x: norms=maybe is not valid: expected true or false, or expected auto"),
        ("x:top=all", "x: top=all is not valid: expected a whole number, or expected auto"),
        ("x:where=atn", "x: where=atn is not valid. Did you mean attn? Valid: attn, both, ffn"),
        ("x:where=Both", "Valid: attn, both, ffn"),
        ("x:sizes=8", "x has no option 'sizes'. Did you mean size"),
        ("x:zzz=8", "x has no option 'zzz'. Valid: norms, on, rate, sites, size, top, where"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(text: str, problem: str):
    with pytest.raises(SpecError) as caught:
        read(text)
    assert problem in str(caught.value)


def test_canonical_leaves_defaults_out_and_keeps_the_order_of_declaration():
    assert canonical("x", Options()) == "x"
    assert canonical("x", Options(sites="a", size=8, on=True)) == "x:size=8,on=true,sites=a"
    assert canonical("x", Options(norms=False, top=2)) == "x:top=2,norms=false"
    assert canonical("x", read("x:norms=auto,size=64,rate=0.50")) == "x"


@examples(60, derandomize=True)
@given(
    st.builds(
        Options,
        size=st.integers(),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        on=st.booleans(),
        where=st.sampled_from(["both", "attn", "ffn"]),
        top=st.none() | st.integers(),
        norms=st.none() | st.booleans(),
        sites=st.text("aZ09.+-_:=", min_size=1),
    )
)
def test_canonical_reads_back_as_the_same_options(options: Options):
    text = canonical("x", options)
    assert read(text) == options
    assert canonical("x", read(text)) == text


def test_describe_lists_every_option_for_people():
    found = {o.name: (o.type, o.default, o.help) for o in describe(Options)}
    assert list(found) == ["size", "rate", "on", "where", "top", "norms", "sites"]
    assert found["size"] == ("int", "64", "a width")
    assert found["on"] == ("bool", "false", "a switch")
    assert found["where"] == ("both|attn|ffn", "both", "a place")
    assert found["top"] == ("int|auto", "auto", "a number, if any")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lora", ["lora"]),
        ("lora,houlsby", ["lora", "houlsby"]),
        ("houlsby:size=8,houlsby:size=64,lora", ["houlsby:size=8", "houlsby:size=64", "lora"]),
        ("lora:rank=4,alpha=8,norms", ["lora:rank=4,alpha=8", "norms"]),
        ("houlsby:size=8,norms=false,lora", ["houlsby:size=8,norms=false", "lora"]),  # here `norms` is an option
        (" lora:rank=4 , alpha=8 , houlsby ", ["lora:rank=4,alpha=8", "houlsby"]),
        ("other:rank=4,alpha=8,lora", ["other:rank=4,alpha=8", "lora"]),
        ("lora:rank=4,other:rank=8", ["lora:rank=4,other:rank=8"]),
        ("", []),
    ],
)
def test_in_a_list_a_comma_starts_a_spec_only_before_a_known_name(text: str, expected: list[str]):
    assert split_list(text, ["lora", "houlsby", "norms"]) == expected


def test_a_list_of_specs_gives_the_methods():
    found = parse_list("houlsby:size=8,norms=false,lora:rank=2,alpha=4,norms")
    assert found == [parse("houlsby:size=8,norms=false"), parse("lora:alpha=4,rank=2"), parse("norms")]


@pytest.mark.parametrize("name", methods.names())
def test_a_method_with_its_defaults_is_its_name(name: str):
    assert parse(name).spec == name


@pytest.mark.parametrize("text", SPECS)
def test_a_methods_spec_reads_back_as_an_equal_method(text: str):
    method, name = parse(text), text.partition(":")[0]
    assert method.spec.startswith(f"{name}:")
    assert method != parse(name)
    assert parse(method.spec) == method
    assert parse(method.spec).spec == method.spec
    assert parse(method) is method


def test_an_unknown_method_names_the_nearest_and_all():
    with pytest.raises(SpecError, match=r"unknown method 'hulsby'. Did you mean houlsby\? Valid: adapterbias, bitfit"):
        parse("hulsby:size=8")


def test_an_unknown_option_of_a_method_names_the_nearest_and_all():
    with pytest.raises(SpecError, match=r"lora has no option 'rnk'. Did you mean rank\? Valid: alpha, layers, mixout"):
        parse("lora:rnk=8")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lora:mixout=-0.1", "lora: mixout=-0.1 is not valid: expected 0 to below 1"),
        ("diffprune:target=0", "diffprune: target=0.0 is not valid: expected more than 0, up to 1"),
        ("diffprune:target=1.5", "diffprune: target=1.5 is not valid: expected more than 0, up to 1"),
        ("houlsby:init=-1", "houlsby: init=-1.0 is not valid: expected 0 or more"),
        ("lora:mixout=1", "lora: mixout=1.0 is not valid: expected 0 to below 1"),
        ("bitfit:mixout=-0.1", "bitfit: mixout=-0.1 is not valid"),
        ("lora:mixout_unit=row", "Valid: element, neuron"),
        ("houlsby:size=0", "houlsby: size=0 is not valid: expected 1 or more"),
        ("houlsby:depth=0", "houlsby: depth=0 is not valid: expected 1 or more"),
        ("houlsby:activation=sigmoid", "f(0) must be 0"),
        ("houlsby:activation=glu", "Did you mean gelu"),
        ("houlsby:share=some", "expected none, sublayers, or a number"),
        ("lora:rank=0", "lora: rank=0 is not valid: expected 1 or more"),
        ("lora:alpha=0", "lora: alpha=0.0 is not valid: expected more than 0"),
        ("adapterbias:l0=-1", "adapterbias: l0=-1.0 is not valid: expected 0 or more"),
        ("adapterbias:alpha=false,l0=1", "alpha=false leaves nothing for l0"),
        ("adapterbias:low=0.5", "low < 0, high > 1 and temperature > 0"),
        ("finetune:top=0", "finetune: top=0 is not valid: expected 1 or more"),
        ("finetune:top=2,layers=1", "give top= or layers=, not both"),
    ],
)
def test_options_that_make_no_sense_are_refused(text: str, problem: str):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text", ["adapterbias:l0=nan", "adapterbias:l0=inf", "houlsby:init=nan", "lora:alpha=inf", "diffprune:l0=nan"]
)
def test_numbers_that_are_not_finite_are_refused(text: str):
    with pytest.raises(SpecError, match="expected a finite number"):
        parse(text)
