"""Import this before a module with kernels: it skips where there is no Triton, and mends its interpreter.

The interpreter of Triton 3.6 holds loop bounds as arrays of one number, which NumPy 2.4 no longer takes for a number.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def _mend() -> None:
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = with_index


if not CUDA:
    _mend()
