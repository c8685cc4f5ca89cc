"""The base's word embeddings as a decoder, and the masked-language head a checkpoint may have been trained with.

Encoders are loaded without heads; the head's weights are looked up in the checkpoint's files by name.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from inlay.base.fingerprint import weight_files
from inlay.base.load import Base

_DENSE = (
    r"(transform\.dense|lm_head\.dense|vocab_transform|(^|\.)predictions\.dense"
    r"|generator_predictions\.dense|^head\.dense)"
)
_NORM = (
    r"(transform\.LayerNorm|lm_head\.(layer_norm|LayerNorm)|vocab_layer_norm|(^|\.)predictions\.LayerNorm"
    r"|generator_predictions\.LayerNorm|^head\.norm)"
)
# other predictions (discriminator_predictions, mask_predictions) say which words were replaced: not the same head
_PARTS = {
    "dense": rf"{_DENSE}\.weight$",
    "dense_bias": rf"{_DENSE}\.bias$",
    "scale": rf"{_NORM}\.(weight|gamma)$",
    "shift": rf"{_NORM}\.(bias|beta)$",
    "words": r"((^|\.)predictions|(^|[._])lm_head|vocab_projector|^decoder)\.bias$",
}


def words_of(base: Base) -> tuple[Tensor, Tensor | None]:
    """The frozen word embeddings [words, e], and the bias of the checkpoint's own decoder [words] if it has one."""
    model: Any = base.model
    weight: Tensor = model.get_input_embeddings().weight
    head = own_head(base)
    if "words" not in head:
        return weight, None
    head["words"] = head["words"].to(
        weight.device, weight.dtype
    )  # only once: copying in every step would wait for the GPU
    return weight, head["words"]


def own_head(base: Base) -> dict[str, Tensor]:
    """The checkpoint's own masked-language head, {} if it has none: dense [d, e], vectors [e], and words [words]."""
    if base.mlm_head is None:
        base.mlm_head = _read(base)
    return base.mlm_head


def _read(base: Base) -> dict[str, Tensor]:
    from safetensors import safe_open

    if base.folder is None:
        return {}
    parts: dict[str, Tensor] = {}
    for file in weight_files(base.folder):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                for part, pattern in _PARTS.items():
                    if re.search(pattern, name):
                        parts[part] = tensors.get_tensor(name).float()
    if "dense" not in parts or "scale" not in parts:
        return {}
    parts["dense"] = parts["dense"].T.contiguous()
    return parts
