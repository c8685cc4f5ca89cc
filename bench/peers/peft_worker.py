"""peft: LoRA, and rows of many adapters through `adapter_names=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
from peer import Worker, module_at, serve
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification

_NAMES = {"attn.q": "query", "attn.v": "value"}


class Peft(Worker):
    name = "peft"
    versions = {"peft": peft.__version__, "transformers": transformers.__version__}  # noqa: RUF012

    def build(self, ask: dict[str, Any]) -> nn.Module:
        method = ask["method"]
        mixed = ask["work"] == "mixed"
        kind = AutoModel if mixed else AutoModelForSequenceClassification
        more = {} if mixed else {"num_labels": 2}
        model = kind.from_pretrained(ask["folder"], attn_implementation="sdpa", dtype=torch.float32, **more)
        config = LoraConfig(
            r=method["rank"],
            lora_alpha=method["alpha"],
            target_modules=["query", "value"],
            task_type=None if mixed else "SEQ_CLS",
        )
        made: Any = get_peft_model(model, config, adapter_name="t0")
        for i in range(1, ask["loaded"]):
            made.add_adapter(f"t{i}", config)
        return made  # type: ignore[no-any-return]

    def encoder(self) -> Callable[..., Any]:
        inner = self.model.base_model.model
        return self.model if self.ask["work"] == "mixed" else inner.base_model  # type: ignore[no-any-return]

    def route(self) -> dict[str, Any]:
        return {"adapter_names": self.ask["names"]} if self.ask["work"] == "mixed" else {}

    def write(self, adapter: str, site: str, layer: int, tensors: dict[str, Tensor]) -> None:
        module = module_at(self.model, f"layer.{layer}.attention.self.{_NAMES[site]}")
        module.lora_A[adapter].weight.data.copy_(tensors["down"].T)
        module.lora_B[adapter].weight.data.copy_(tensors["up"].T)


if __name__ == "__main__":
    serve(Peft())
