"""One batch of rows for many LoRA adapters: Inlay against peft, on the same weights, interleaved in one run.

    python bench/mixed_batch.py --rows 64 --tasks 1 4 16 64

Both run all-MiniLM-L6-v2 with LoRA rank 8 on query and value, fp32 on the CPU, bf16 on CUDA. peft gets what its
documentation recommends for this (`adapter_names=`), dynamic padding, sdpa attention and inference mode. Texts are
lengths drawn from a log-normal around 28 tokens, the shape of GLUE's single sentences. Outputs are compared
before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import inlay
from inlay.base.load import load


def lengths(rows: int, seed: int, mean: float = 28, most: int = 128) -> list[int]:
    random = torch.Generator().manual_seed(seed)
    drawn = torch.exp(torch.randn(rows, generator=random) * 0.5 + math.log(mean))
    return [int(n) for n in drawn.round().clamp(5, most)]


def build(tasks: int, device: str, dtype: torch.dtype) -> tuple[inlay.Host, Any]:
    """The same adapters in both libraries."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    host = inlay.Host(device=device, dtype=dtype)
    source = load(device=device, dtype=dtype)
    model = AutoModel.from_pretrained(str(source.folder), dtype=dtype, attn_implementation="sdpa").to(device)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], init_lora_weights=False)
    peer: Any = get_peft_model(model, config, adapter_name="t0")
    for i in range(1, tasks):
        peer.add_adapter(f"t{i}", config)
    peer.eval()
    names = {"attn.q": "query", "attn.v": "value"}
    for i in range(tasks):
        host.add(f"t{i}", "lora")
        tensors = host.forward.bank.read(host.slot(f"t{i}"))
        for layer in range(host.base.sites.layers):
            attention = peer.base_model.model.encoder.layer[layer].attention.self
            for site, theirs in names.items():
                module = getattr(attention, theirs)
                tensors[f"layers.{layer}.{site}.down"] = module.lora_A[f"t{i}"].weight.detach().T
                tensors[f"layers.{layer}.{site}.up"] = module.lora_B[f"t{i}"].weight.detach().T
        host.forward.bank.write(host.slot(f"t{i}"), tensors)
    return host, peer


def compare(rows: int, tasks: int, repeats: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    host, peer = build(tasks, device, dtype)
    random = torch.Generator().manual_seed(0)
    sizes = lengths(rows, seed=1)
    batch = inlay.Batch.of([torch.randint(1000, 30000, (n,), generator=random).tolist() for n in sizes])
    names = [f"t{i * tasks // rows}" for i in range(rows)]
    ids = torch.nn.utils.rnn.pad_sequence(torch.split(batch.ids, sizes), batch_first=True).to(device)
    mask = (torch.arange(ids.shape[1]) < torch.tensor(sizes)[:, None]).long().to(device)

    def ours() -> list[torch.Tensor]:
        return host.hidden(batch, names).rows()

    def theirs() -> list[torch.Tensor]:
        states = peer(input_ids=ids, attention_mask=mask, adapter_names=names).last_hidden_state
        return [states[i, :n] for i, n in enumerate(sizes)]

    def bare() -> list[torch.Tensor]:
        return host.hidden(batch, [None] * rows).rows()

    runs: dict[str, Callable[[], list[torch.Tensor]]] = {"inlay": ours, "peft": theirs, "bare base, packed": bare}
    with torch.inference_mode():
        worst = max((a - b).abs().max().item() for a, b in zip(ours(), theirs(), strict=True))
        assert worst < (1e-4 if dtype == torch.float32 else 0.1), f"outputs differ by {worst}"
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                if device == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
                run()
                if device == "cuda":
                    torch.cuda.synchronize()
                times[name].append(1000 * (time.perf_counter() - start))
    median = {name: statistics.median(found[1:]) for name, found in times.items()}
    spread = {name: statistics.quantiles(found[1:], n=4) for name, found in times.items()}
    return {"rows": rows, "tasks": tasks, "ms": median, "quartiles": spread, "difference": worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=str, default="")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    results = []
    for tasks in args.tasks:
        result = compare(args.rows, tasks, args.repeats, device, dtype)
        ms = result["ms"]
        columns = "  ".join(
            f"{n} {ms[n]:7.1f} ms ({result['quartiles'][n][0]:.1f}-{result['quartiles'][n][2]:.1f})" for n in ms
        )
        print(
            f"{args.rows} rows of {tasks:3} tasks on {device}:  {columns}  ratio {ms['peft'] / ms['inlay']:.1f}x",
            flush=True,
        )
        results.append(result)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
