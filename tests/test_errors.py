"""Bad input gets a clear error: what was wrong, and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import tiny
import transformers

import inlay
from inlay import errors
from inlay.bank.bank import Bank
from inlay.base.shapes import sites_of
from inlay.errors import ArchError, BaseError, InlayError, SlotError, SpecError, suggest

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def add(spec: str, arch: str = "bert") -> Callable[[], object]:
    return lambda: tiny.host(arch).add("a", spec)


def attach(spec: str, arch: str = "bert") -> Callable[[], object]:
    return lambda: inlay.attach(tiny.model(arch), spec)


def parse(spec: str) -> Callable[[], object]:
    return lambda: inlay.parse_method(spec)


def count(spec: str, shape: str = "bert-base") -> Callable[[], object]:
    return lambda: inlay.parse_method(spec).count(sites_of(shape))


def unload(name: str, *loaded: str) -> Callable[[], object]:
    def call() -> None:
        host = tiny.host()
        for other in loaded:
            host.add(other, "lora")
        host.unload(name)

    return call


def unknown() -> Any:
    return transformers.CamembertModel(transformers.CamembertConfig(**SIZE, vocab_size=60))


class Case(NamedTuple):
    call: Callable[[], object]
    error: type[InlayError]
    wrong: str
    """The offending value."""
    right: str
    """Something valid, or what to do."""


HOW_TO = "To add it: inlay.base.arch.register(Arch(model_type=..., layers=..., sites=...))"
CASES = {
    "method": Case(parse("hulsby"), SpecError, "'hulsby'", "Did you mean houlsby?"),
    "method, all of them": Case(parse("xyz"), SpecError, "'xyz'", "Valid: adapterbias, bitfit, diffprune, finetune"),
    "method of a host": Case(add("lorra:rank=4"), SpecError, "'lorra'", "Did you mean lora?"),
    "method of attach": Case(attach("bitfti"), SpecError, "'bitfti'", "Did you mean bitfit?"),
    "option": Case(parse("houlsby:sizes=8"), SpecError, "'sizes'", "Did you mean size"),
    "option of every method": Case(parse("norms:layer=2"), SpecError, "'layer'", "Did you mean layers?"),
    "option, all of them": Case(parse("lora:zzz=2"), SpecError, "'zzz'", "Valid: alpha, layers, mixout"),
    "choice": Case(parse("houlsby:where=atn"), SpecError, "where=atn", "Did you mean attn?"),
    "type": Case(parse("lora:rank=many"), SpecError, "rank=many", "expected a whole number"),
    "site": Case(add("lora:sites=atn.q"), SpecError, "'atn.q'", "Did you mean attn.q"),
    "site of attach": Case(attach("lora:sites=attn.query"), SpecError, "'attn.query'", "attn.q"),
    "site of a shape": Case(count("lora:sites=ffn.inn"), SpecError, "'ffn.inn'", "Did you mean ffn.in"),
    "site of another model": Case(add("lora:sites=ffn.gate"), SpecError, "'ffn.gate'", "ffn.in"),
    "a norm is no projection": Case(add("lora:sites=attn.norm"), SpecError, "attn.norm", "attn.out"),
    "biases of llama": Case(add("bitfit", "llama"), SpecError, "bitfit", "llama has no biases"),
    "biases of modernbert": Case(attach("bitfit", "modernbert"), SpecError, "bitfit", "modernbert has no biases"),
    "layer": Case(add("houlsby:layers=3"), SpecError, "layers=3", "layers 0 to 2"),
    "span": Case(add("lora:layers=1-7"), SpecError, "layers=1-7", "layers 0 to 2"),
    "top": Case(attach("norms:layers=top9"), SpecError, "layers=top9", "layers 0 to 2"),
    "top of fine-tuning": Case(add("finetune:top=4"), SpecError, "top4", "layers 0 to 2"),
    "layer of a shape": Case(count("adapterbias:layers=12"), SpecError, "layers=12", "layers 0 to 11"),
    "layer of shared layers": Case(add("lora:layers=1", "albert"), SpecError, "layers=1", "layers 0 to 0"),
    "backward span": Case(add("bitfit:layers=2-1"), SpecError, "layers=2-1", "layers 0 to 2"),
    "layers syntax": Case(add("bitfit:layers=first"), SpecError, "layers=first", "all, 3, 4-11, top3"),
    "layers syntax, weights": Case(add("diffprune:layers=-1"), SpecError, "layers=-1", "all, 3, 4-11, top3"),
    "size": Case(parse("houlsby:size=0"), SpecError, "size=0", "1 or more"),
    "negative size": Case(add("houlsby:size=-8"), SpecError, "size=-8", "1 or more"),
    "rank": Case(parse("lora:rank=0"), SpecError, "rank=0", "1 or more"),
    "activation": Case(parse("houlsby:activation=sigmoid"), SpecError, "activation=sigmoid", "Valid: gelu, relu"),
    "activation, why": Case(parse("houlsby:activation=softplus"), SpecError, "softplus", "f(0) must be 0"),
    "activation, unknown": Case(parse("houlsby:activation=gellu"), SpecError, "gellu", "Did you mean gelu"),
    "unload": Case(unload("topc", "topic", "tone"), SlotError, "'topc'", "Did you mean topic"),
    "unload, none there": Case(unload("topic"), SlotError, "'topic'", "Valid: none"),
    "unload a slot": Case(lambda: Bank().unload(7), SlotError, "slot 7", "loaded: none"),
    "architecture": Case(lambda: inlay.Host(unknown()), ArchError, "'camembert'", HOW_TO),
    "architecture, attach": Case(lambda: inlay.attach(unknown(), "lora"), ArchError, "'camembert'", HOW_TO),
    "architecture, all": Case(lambda: inlay.Host(unknown()), ArchError, "'camembert'", "Valid: albert, bert"),
    "shape": Case(count("lora", "bert-bse"), BaseError, "'bert-bse'", "Did you mean bert-base"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gets_a_clear_error(name):
    case = CASES[name]
    with pytest.raises(InlayError) as caught:
        case.call()
    message = str(caught.value)
    assert type(caught.value) is case.error
    assert case.wrong in message
    assert case.right in message
    assert "\n" not in message
    assert caught.value.__cause__ is None  # nobody else's exception shows through


def test_several_wrong_options_are_named_together():
    with pytest.raises(SpecError) as caught:
        inlay.parse_method("houlsby:sizes=8,where=atn,depth=two")
    for part in ("'sizes'", "where=atn", "depth=two"):
        assert part in str(caught.value)


def test_every_error_is_in_one_tree_that_the_docstring_draws():
    found = {e.__name__ for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)}
    assert all(issubclass(getattr(errors, name), InlayError) for name in found)
    assert errors.__doc__ is not None
    drawn = {line.partition("── ")[2].split()[0] for line in errors.__doc__.splitlines() if "── " in line}
    assert drawn == found - {"InlayError"}


@pytest.mark.parametrize(
    ("name", "valid", "expected"),
    [
        ("siz", ["size", "rate"], "Did you mean size? Valid: rate, size"),
        ("atn.q", ["attn.v", "attn.q"], "Did you mean attn.q or attn.v? Valid: attn.q, attn.v"),
        ("zzz", ["b", "a"], "Valid: a, b"),
        ("a", [], "Valid: none"),
    ],
)
def test_suggest_names_the_nearest_and_then_all(name, valid, expected):
    assert suggest(name, valid) == expected
