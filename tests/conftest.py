"""Tiny models run faster on one thread than on several."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
