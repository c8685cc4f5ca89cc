"""Well-known model shapes, to count parameters without weights (`inlay params --shape bert-base`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inlay.base import arch
from inlay.base.sites import Sites, resolve
from inlay.errors import BaseError, suggest


def _bert(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": "bert", "intermediate_size": 4 * hidden, **sizes, **more}


def _roberta(hidden: int, layers: int, heads: int, kind: str = "roberta", vocabulary: int = 50265) -> dict[str, Any]:
    more = {"vocab_size": vocabulary, "max_position_embeddings": 514, "type_vocab_size": 1}
    return {**_bert(hidden, layers, heads, **more), "model_type": kind}


SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "roberta-base": _roberta(768, 12, 12),
    "roberta-large": _roberta(1024, 24, 16),
    "xlmr-large": _roberta(1024, 24, 16, "xlm-roberta", 250002),
    "minilm-l6": _bert(384, 6, 12),
}


def sites_of(shape: str) -> Sites:
    """The sites of a well-known shape, or of a folder's config.json, on meta tensors."""
    from transformers import AutoConfig

    if shape in SHAPES:
        options = dict(SHAPES[shape])
        return _sites(AutoConfig.for_model(options.pop("model_type"), **options))
    if Path(shape).is_dir():
        return sites_of_base(shape)
    raise BaseError(f"{shape!r} is neither a known shape nor a folder: {suggest(shape, SHAPES)}")


def sites_of_base(where: str) -> Sites:
    """The sites of a base, a folder or a hub name, from its config.json alone."""
    from transformers import AutoConfig

    try:
        return _sites(AutoConfig.from_pretrained(where, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise BaseError(f"cannot read the config of {where}: {str(error).splitlines()[0]}") from None


def _sites(config: Any) -> Sites:
    from transformers import AutoModel

    row = arch.find(config.model_type)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return resolve(model, row)
