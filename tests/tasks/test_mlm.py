"""Masked words: what is hidden, and that a checkpoint's own head gives the model's own answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
import transformers as t
from safetensors.torch import load_file, save_file
from torch import Tensor

import inlay
from inlay.base.words import own_head, words_of
from inlay.engine.evaluate import by_example, outputs_of, score
from inlay.errors import SpecError
from inlay.tasks import Example, Row, parse

TASK = parse("mlm")
TOKENIZER = tiny.tokenizer()
SPECIAL = set(TOKENIZER.all_special_ids)
HIDDEN_NOT = -100
MODELS: dict[str, type[Any]] = {
    "bert": t.BertForMaskedLM,
    "roberta": t.RobertaForMaskedLM,
    "xlm-roberta": t.XLMRobertaForMaskedLM,
    "electra": t.ElectraForMaskedLM,
    "distilbert": t.DistilBertForMaskedLM,
    "mpnet": t.MPNetForMaskedLM,
    "deberta-v2": t.DebertaV2ForMaskedLM,
    "albert": t.AlbertForMaskedLM,
    "modernbert": t.ModernBertForMaskedLM,
}
# the head has one activation (gelu) and one epsilon (1e-12) for all; elsewhere they differ in the fourth digit
EXACT: dict[str, dict[str, Any]] = {"albert": {"hidden_act": "gelu"}, "modernbert": {"norm_eps": 1e-12}}


def saved(folder: Any, name: str, cls: type[Any] | None = None, **changes: Any) -> Any:
    """A tiny model with a masked-language head, shaken, in a folder."""
    config = type(tiny.CONFIGS[name]).from_dict({**tiny.CONFIGS[name].to_dict(), **changes})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = (cls or MODELS[name])(config).eval()
        for p in model.parameters():
            p += torch.randn(p.shape) * 0.2
    model.save_pretrained(folder)
    return model


def masked_host(folder: Any) -> inlay.Host:
    host = inlay.Host(folder, device="cpu", dtype=torch.float32)
    host.add("m", "frozen", labels=["word"], task="mlm")
    return host


def furthest(folder: Any, model: Any) -> float:
    """How far the logits over the vocabulary are from the model's own."""
    host, batch = masked_host(folder), tiny.batch(5)
    words, bias = words_of(host.base)
    worst = 0.0
    with torch.no_grad():
        states = host.logits(batch, ["m"] * 5)
        for ids, state in zip(tiny.rows_of(batch), states, strict=True):
            own = state @ words.T + (0 if bias is None else bias)
            worst = max(worst, (own - model(input_ids=ids[None]).logits[0]).abs().max().item())
    return worst


@pytest.mark.parametrize("name", MODELS)
def test_at_the_start_the_logits_are_those_of_the_checkpoints_own_head(name, tmp_path):
    model = saved(tmp_path, name, **EXACT.get(name, {}))
    assert furthest(tmp_path, model) < 1e-5


@pytest.mark.parametrize("name", EXACT)
def test_another_activation_or_epsilon_changes_little(name, tmp_path):
    assert furthest(tmp_path, saved(tmp_path, name)) < 5e-3


def test_the_head_of_newer_debertas(tmp_path):
    model = saved(tmp_path, "deberta-v2", legacy=False)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    other = {f"mask_predictions.{n}": torch.randn(16, 16) for n in ("dense.weight", "classifier.weight")}
    other |= {f"mask_predictions.{n}": torch.randn(16) for n in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")}
    save_file(tensors | other, file, {"format": "pt"})
    assert furthest(tmp_path, model) < 1e-5


def test_a_head_that_says_which_words_were_replaced_is_not_taken(tmp_path):
    saved(tmp_path, "electra", t.ElectraForPreTraining)
    assert own_head(masked_host(tmp_path).base) == {}


@pytest.mark.parametrize("change", ["dense", "shift", "words"])
def test_a_wrong_head_would_be_noticed(change, tmp_path, monkeypatch):
    model = saved(tmp_path, "bert")
    found = dict(own_head(inlay.Host(tmp_path, device="cpu").base))
    found[change] = found[change].roll(1, 0)
    monkeypatch.setattr("inlay.base.words._read", lambda base: found)
    assert furthest(tmp_path, model) > 0.1


def test_without_a_head_in_the_checkpoint_there_is_a_fresh_one():
    host = tiny.text_host()
    host.add("m", "frozen", labels=["word"], task="mlm")
    assert own_head(host.base) == {}
    words, bias = words_of(host.base)
    assert words.shape == (len(TOKENIZER), 16)
    assert bias is None
    assert {n for n in host.read("m") if n.startswith("head")} == {
        "head.dense",
        "head.dense_bias",
        "head.scale",
        "head.shift",
    }


def many(rows: int = 600) -> list[Row]:
    random = torch.Generator().manual_seed(3)
    texts = [torch.randint(5, len(TOKENIZER), (60,), generator=random).tolist() for _ in range(rows)]
    return [Row([2, *ids, 3], aux=list(range(1, 61))) for ids in texts]


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_shares_of_what_is_hidden(share):
    rows = many()
    drawn = parse(f"mlm:share={share}").draw(rows, TOKENIZER, torch.Generator().manual_seed(0))
    before, after = torch.tensor([r.ids for r in rows]), torch.tensor([r.ids for r in drawn])
    target = torch.tensor([r.target for r in drawn])
    chosen = target != HIDDEN_NOT
    assert chosen[:, 1:-1].float().mean().item() == pytest.approx(share, abs=0.01)
    assert torch.equal(target[chosen], before[chosen])
    assert torch.equal(after[~chosen], before[~chosen])
    masked = (after == TOKENIZER.mask_token_id) & chosen
    same = (after == before) & chosen
    n = chosen.sum().item()
    by_chance = 0.1 / len(TOKENIZER)  # a random token may be the mask, or the same one
    assert masked.sum().item() / n == pytest.approx(0.8 + by_chance, abs=0.02)
    assert same.sum().item() / n == pytest.approx(0.1 + by_chance, abs=0.015)
    replaced = after[chosen & ~masked & ~same]
    assert len(replaced) / n == pytest.approx(0.1, abs=0.015)
    assert len(replaced.unique()) > 100  # any token, not a favourite one


def test_another_draw_hides_other_tokens_and_the_same_one_the_same():
    def draw(seed: int) -> list[Row]:
        return TASK.draw(many(5), TOKENIZER, torch.Generator().manual_seed(seed))

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


def test_special_tokens_are_never_hidden():
    text = "good [MASK] film [SEP] 漢 book " * 8
    rows = TASK.encode(TOKENIZER, [Example(text), Example("the soup", text)], (), 30)
    assert len(rows) > 3
    for seed in range(30):
        for row, drawn in zip(rows, TASK.draw(rows, TOKENIZER, torch.Generator().manual_seed(seed)), strict=True):
            for old, new, target in zip(row.ids, drawn.ids, drawn.target, strict=True):
                if old in SPECIAL:
                    assert (new, target) == (old, HIDDEN_NOT)
            assert any(value != HIDDEN_NOT for value in drawn.target)  # something to learn from in every row


def test_every_token_is_in_some_row():
    text = " ".join(tiny.WORDS * 3)
    rows = TASK.encode(TOKENIZER, [Example(text)], (), 30)
    assert {i for row in rows for i in row.ids} >= set(TOKENIZER(text, verbose=False)["input_ids"])


def test_a_text_with_nothing_to_hide_costs_nothing():
    host = tiny.text_host()
    (row,) = TASK.draw(TASK.encode(TOKENIZER, [Example("漢 字")], (), 30), TOKENIZER, torch.Generator())
    out = torch.randn(len(row.ids), 16, device=tiny.DEVICE, requires_grad=True)
    loss = TASK.loss([out], [row], host.base)
    loss.backward()
    assert loss.item() == 0
    found = TASK.decode([out], [row], Example(""), (), host.base)
    assert found == {"loss": 0.0, "tokens": 0}
    assert TASK.score([], [found], ()) == {"perplexity": math.inf}


def test_a_base_without_a_mask_token():
    words = tiny.tokenizer()
    words.mask_token = None
    with pytest.raises(SpecError, match="no mask token"):
        TASK.encode(words, [Example("good")], (), 30)


@pytest.mark.parametrize("share", [0, 1, 1.5])
def test_share_out_of_range(share):
    with pytest.raises(SpecError, match="between 0 and 1"):
        parse(f"mlm:share={share}")


def losses_of(model: Any) -> Callable[[list[Row]], tuple[Tensor, int]]:
    """The summed loss by transformers' own forward pass on padded rows, and the number of hidden tokens."""

    def run(rows: list[Row]) -> tuple[Tensor, int]:
        longest = max(len(row.ids) for row in rows)
        ids, labels = torch.zeros(len(rows), longest, dtype=torch.long), torch.full((len(rows), longest), HIDDEN_NOT)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, row in enumerate(rows):
            n = len(row.ids)
            ids[i, :n], labels[i, :n], mask[i, :n] = torch.tensor(row.ids), torch.tensor(row.target), 1
            types[i, :n] = torch.tensor(row.types)
        n = int((labels != HIDDEN_NOT).sum())
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=labels).loss * n, n

    return run


def test_loss_and_perplexity_are_those_of_transformers(tmp_path):
    model = saved(tmp_path, "bert", vocab_size=len(TOKENIZER), max_position_embeddings=64)
    TOKENIZER.save_pretrained(tmp_path)
    host = masked_host(tmp_path)
    examples = [Example(text) for text in ("a fine film", "who came ? bob .", "the soup was awful , " * 9)]
    rows = TASK.draw(TASK.encode(TOKENIZER, examples, (), 24), TOKENIZER, torch.Generator().manual_seed(0))
    rows = [replace(row, types=row.types or [0] * len(row.ids)) for row in rows]
    total, n = losses_of(model)(rows)
    (outputs,) = outputs_of(host, [("m", rows)])
    assert TASK.loss(outputs, rows, host.base).item() == pytest.approx(total.item() / n, rel=1e-5)
    found = score(host, "m", examples, rows, outputs)
    assert found["perplexity"] == pytest.approx(math.exp(total.item() / n), rel=1e-5)
    answers = TASK.answers(*by_example(outputs, rows, len(examples)), examples, (), host.base)
    assert sum(a["tokens"] for a in answers) == n
