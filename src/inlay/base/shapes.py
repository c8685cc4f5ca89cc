"""The sites of well-known shapes, to count parameters without weights (`inlay params --shape bert-base`)."""

from __future__ import annotations

from typing import Any

import torch

from inlay.base import arch
from inlay.base.places import SHAPES, check_shape
from inlay.base.sites import Sites, resolve
from inlay.errors import BaseError, InlayError, first_line


def sites_of(shape: str) -> Sites:
    """The sites of a well-known shape, or of a folder's config.json, on meta tensors."""
    from transformers import AutoConfig

    check_shape(shape)
    if shape in SHAPES:
        options = dict(SHAPES[shape])
        return _sites(AutoConfig.for_model(options.pop("model_type"), **options))
    return sites_of_base(shape)


def sites_of_base(where: str) -> Sites:
    """The sites of a base, a folder or a hub name, from its config.json alone."""
    from transformers import AutoConfig

    try:
        return _sites(AutoConfig.from_pretrained(where, trust_remote_code=False))
    except InlayError:
        raise
    except Exception as error:  # a file that it cannot read makes transformers raise anything
        raise BaseError(f"cannot read the config of {where}: {first_line(error)}") from error


def _sites(config: Any) -> Sites:
    from transformers import AutoModel

    row = arch.find(config.model_type)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return resolve(model, row)
