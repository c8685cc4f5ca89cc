"""Tiny models run faster on one thread than on several. Without a GPU, Triton's kernels run in its interpreter."""

from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
