"""The architecture table: a new architecture is one row, and a bad row is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import tiny
import torch
import transformers

import inlay
from inlay.base import arch
from inlay.base.arch import Arch
from inlay.errors import ArchError

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture(autouse=True)
def restore_table() -> Iterator[None]:
    before = dict(arch._TABLE)
    yield
    arch._TABLE.clear()
    arch._TABLE.update(before)


def camembert() -> torch.nn.Module:
    """RoBERTa under another name: a model without a row."""
    torch.manual_seed(0)
    config = transformers.CamembertConfig(**SIZE, vocab_size=60, max_position_embeddings=40)
    return transformers.CamembertModel(config).eval()


def test_the_table_has_the_rows_it_promises():
    promised = "albert bert deberta-v2 distilbert electra gpt2 llama modernbert mpnet qwen2 roberta xlm-roberta"
    assert set(promised.split()) <= set(arch.names())
    assert arch.names() == sorted(arch.names())
    assert all(arch.find(name).model_type == name for name in arch.names())


def test_an_unknown_architecture_names_the_nearest_and_says_how_to_add_a_row():
    with pytest.raises(ArchError) as caught:
        arch.find("robert")
    message = str(caught.value)
    assert "unsupported architecture 'robert'. Did you mean " in message
    assert "roberta" in message.partition("?")[0]
    assert "Valid: albert, bert" in message
    assert "inlay.base.arch.register(Arch(model_type=..., layers=..., sites=...))" in message


def test_a_model_without_a_row_is_refused_before_it_runs():
    with pytest.raises(ArchError, match=r"'camembert'.*To add it: inlay\.base\.arch\.register"):
        inlay.Host(camembert())


def test_one_row_is_all_a_new_architecture_needs():
    added = arch.register(replace(arch.find("roberta"), model_type="camembert"))
    assert arch.find("camembert") is added
    assert "camembert" in arch.names()
    model, batch = camembert(), tiny.batch(3)
    with torch.no_grad():
        ids = tiny.rows_of(batch)
        expected = [model(row.unsqueeze(0)).last_hidden_state[0] for row in ids]
        host = inlay.Host(model)
        host.add("a", "houlsby:size=4", seed=1)
        tiny.shake(host, "a")
        rows = host.hidden(batch, [None, "a", None]).rows()
    for row in (0, 2):
        torch.testing.assert_close(rows[row], expected[row], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(rows[1], expected[1], atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sites": {"atn.q": "query"}}, "unknown site 'atn.q'. Did you mean attn.q"),
        ({"sites": {"attn.q": "query", "pooler": "pooler"}}, "unknown site 'pooler'"),
        ({"outside": {"embd.norm": "norm"}}, "unknown site 'embd.norm'. Did you mean embed.norm"),
        ({"outside": {"attn.q": "query"}}, "unknown site 'attn.q'"),
        ({"dropouts": {"atn.out": "dropout"}}, "'atn.out'. Did you mean attn.out"),
    ],
)
def test_a_row_with_an_unknown_site_is_refused_and_not_kept(changes: dict[str, dict[str, str]], problem: str):
    options = {"sites": {"attn.q": "query"}, **changes}
    with pytest.raises(ArchError) as caught:
        arch.register(Arch(model_type="odd", layers="layers", **options))
    assert "row 'odd'" in str(caught.value)
    assert problem in str(caught.value)
    assert "odd" not in arch.names()


def test_the_valid_names_of_an_unknown_site_are_those_of_its_place():
    with pytest.raises(ArchError) as inside:
        arch.register(Arch(model_type="odd", layers="layers", sites={"zz": "a"}))
    assert str(inside.value).endswith("Valid: " + ", ".join(sorted(arch.SITE_KINDS)))
    with pytest.raises(ArchError) as outside:
        arch.register(Arch(model_type="odd", layers="layers", sites={}, outside={"zz": "a"}))
    assert str(outside.value).endswith("Valid: " + ", ".join(sorted(arch.OUTSIDE_KINDS)))


def test_a_row_may_replace_one_of_the_same_name():
    changed = replace(arch.find("bert"), packable=False)
    arch.register(changed)
    assert arch.find("bert") is changed
