"""Tiny models run faster on one thread than on several. Without a GPU, Triton's kernels run in its interpreter.

Caches go to a folder that lives as long as the tests: also those of commands that tests start.
"""

from __future__ import annotations

import os
import tempfile

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
_CACHE = tempfile.TemporaryDirectory(prefix="inlay-tests-", ignore_cleanup_errors=True)
os.environ["INLAY_CACHE"] = _CACHE.name
