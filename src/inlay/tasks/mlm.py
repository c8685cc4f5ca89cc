"""Masked language modelling: some tokens are hidden and predicted. Used to adapt to a task's texts first (TAPT).

At every step 15 % of the tokens are chosen; of these 80 % become the mask, 10 % a random token, and 10 % stay. The
head is a transform (dense, gelu, norm) whose result is compared with the frozen word embeddings, so the vocabulary
costs no parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import metrics
from inlay.base.load import Base
from inlay.base.words import words_of
from inlay.config import option
from inlay.data.columns import OWN, Columns
from inlay.data.record import Record
from inlay.errors import SpecError
from inlay.registry import tasks
from inlay.tasks import NOTHING, Answer, Example, Row, Targets, Task, at_units, equal_shares
from inlay.tasks._text import text_example, text_rows

_IGNORED = -100


@tasks.register("mlm")
@dataclass(frozen=True, kw_only=True)
class MLM(Task):
    """The options of the task."""

    kind = "mlm"
    measures = metrics.OF_TASK["mlm"]
    columns = OWN["mlm"].columns
    joined = OWN["mlm"].joined
    gives_answers = False
    loss_options = ()
    encode_options = ()
    per_token = True
    head = "transform"

    share: float = option(0.15, "the share of tokens that is chosen", above=0, below=1)

    def read(self, record: Record, columns: Columns) -> Example:
        """Text is all it needs."""
        return text_example(record, columns, "")

    def labels(self, examples: Sequence[Example]) -> tuple[str, ...]:
        """The head's width is the base's, which only the host knows."""
        return ()

    def encode(self, tokenizer: Any, examples: Sequence[Example], labels: Sequence[str], limit: int) -> list[Row]:
        """aux says which tokens may be hidden: all but the special ones."""
        if tokenizer.mask_token_id is None:
            raise SpecError("this base has no mask token, so it cannot be trained on text with masked words")
        special = set(tokenizer.all_special_ids)
        rows = text_rows(tokenizer, examples, limit, True, lambda e: None)
        return [replace(row, aux=[i for i, token in enumerate(row.ids) if token not in special]) for row in rows]

    def draw(self, rows: Sequence[Row], tokenizer: Any, random: torch.Generator) -> list[Row]:
        """Hide tokens; the target is what they were."""
        drawn = []
        for row in rows:
            ids, target = torch.tensor(list(row.ids)), torch.full((len(row.ids),), _IGNORED)
            hideable = torch.tensor(row.aux, dtype=torch.long)
            chosen = hideable[torch.rand(len(hideable), dtype=torch.float32, generator=random) < self.share]
            if not len(chosen) and len(hideable):
                chosen = hideable[:1]
            target[chosen] = ids[chosen]
            kind = torch.rand(len(chosen), dtype=torch.float32, generator=random)
            anything = torch.randint(len(tokenizer), (len(chosen),), generator=random)
            ids[chosen] = torch.where(
                kind < 0.8, tokenizer.mask_token_id, torch.where(kind < 0.9, anything, ids[chosen])
            )
            drawn.append(replace(row, ids=ids.tolist(), target=target.tolist()))
        return drawn

    def targets(self, rows: Sequence[Row], weights: Sequence[float] | None = None) -> Targets:
        """A unit is a hidden token, its value what it was; a batch may have none."""
        tokens = np.array([token for row in rows for token in row.target], dtype=np.int64)
        at = np.flatnonzero(tokens != _IGNORED)
        return Targets(at, tokens[at], equal_shares(len(at)))

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Cross-entropy over the vocabulary."""
        words, bias = words_of(base)
        states = outputs[:, : words.shape[1]]
        states = states.masked_fill(states <= NOTHING, 0.0)  # its product with the words may not be finite in fp16
        # the transform comes out in the head's dtype, which may be wider than the base's, and answers are on the CPU
        logits = states.to(words) @ words.T
        logits = (logits if bias is None else logits + bias).float()
        return F.cross_entropy(logits, value.to(logits.device), reduction="none")

    def decode(
        self, outputs: Sequence[Tensor], rows: Sequence[Row], example: Example, labels: Sequence[str], base: Base
    ) -> Answer:
        """The summed loss, and over how many tokens."""
        flat, targets = torch.cat(list(outputs)), self.targets(rows)
        at, value = torch.from_numpy(targets.at).to(flat.device), torch.from_numpy(targets.value)
        losses = self.losses(at_units(flat, at), value, base)
        return {"loss": losses.sum().item(), "tokens": len(losses)}

    def score(self, examples: Sequence[Example], answers: Sequence[Answer], labels: Sequence[str]) -> dict[str, float]:
        """Perplexity of the hidden tokens."""
        tokens = sum(a["tokens"] for a in answers)
        mean = sum(a["loss"] for a in answers) / tokens if tokens else math.inf
        return {"perplexity": metrics.perplexity(mean)}
