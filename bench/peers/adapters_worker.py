"""adapters: bottlenecks (`DoubleSeqBn`) and LoRA, and rows of many adapters through `BatchSplit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import adapters
import torch
import transformers
from adapters import AutoAdapterModel, DoubleSeqBnConfig, LoRAConfig
from adapters.composition import BatchSplit
from peer import Worker, module_at, serve
from torch import Tensor, nn
from transformers import AutoModel

_NAMES = {"attn.q": "query", "attn.v": "value"}
_OUTPUTS = {"attn.out": "attention.output", "ffn.out": "output"}


class Adapters(Worker):
    name = "adapters"
    versions = {"adapters": adapters.__version__, "transformers": transformers.__version__}  # noqa: RUF012

    def build(self, ask: dict[str, Any]) -> nn.Module:
        mixed = ask["work"] == "mixed"
        kind = AutoModel if mixed else AutoAdapterModel
        model: Any = kind.from_pretrained(ask["folder"], attn_implementation="sdpa", torch_dtype=torch.float32)
        if mixed:
            adapters.init(model)
        config = self._config(ask["method"], model.config.hidden_size)
        for i in range(ask["loaded"]):
            model.add_adapter(f"t{i}", config=config)
        if mixed:
            counts = Counter(ask["names"])  # in the order of the rows, which stand together by task
            split = BatchSplit(*counts, batch_sizes=list(counts.values()))
            model.set_active_adapters(split if len(counts) > 1 else next(iter(counts)))
        else:
            model.add_classification_head("t0", num_labels=2, layers=1)
            model.train_adapter("t0")
        return model  # type: ignore[no-any-return]

    def _config(self, method: dict[str, Any], hidden: int) -> Any:
        if method["kind"] == "lora":
            return LoRAConfig(r=method["rank"], alpha=method["alpha"], attn_matrices=["q", "v"])
        return DoubleSeqBnConfig(reduction_factor=hidden / method["size"], non_linearity=method["activation"])

    def encoder(self) -> Callable[..., Any]:
        return self.model if self.ask["work"] == "mixed" else self.model.base_model  # type: ignore[no-any-return]

    def write(self, adapter: str, site: str, layer: int, tensors: dict[str, Tensor]) -> None:
        if site in _NAMES:
            lora = module_at(self.model, f"layer.{layer}.attention.self.{_NAMES[site]}").loras[adapter]
            lora.lora_A.data.copy_(tensors["down"].T)
            lora.lora_B.data.copy_(tensors["up"].T)
            return
        found = module_at(self.model, f"layer.{layer}.{_OUTPUTS[site]}").adapters[adapter]
        for name, module in (("down", found.adapter_down[0]), ("up", found.adapter_up)):
            module.weight.data.copy_(tensors[name].T)
            module.bias.data.copy_(tensors[f"{name}_bias"])


if __name__ == "__main__":
    serve(Adapters())
