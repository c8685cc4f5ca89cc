"""Several adapters on one base, trained in the same batches and served in one.

Run it: python examples/side_by_side.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

import inlay

SPAM = [("you won a prize, call now", 1), ("see you at noon", 0), ("free entry, text WIN", 1), ("thanks a lot", 0)]
TONE = [("what a lovely film", 2), ("it was awful", 0), ("it starts at nine", 1), ("I loved every minute", 2)]


def main() -> None:
    host = inlay.Host()
    methods = {"spam": "houlsby:size=16", "spam2": "lora:rank=4", "tone": "adapterbias"}
    for i, (name, method) in enumerate(methods.items()):
        labels = ["bad", "neutral", "good"] if name == "tone" else ["ham", "spam"]
        host.add(name, method, labels=labels, seed=i)
    rows = [(name, text, label) for name in methods for text, label in (TONE if name == "tone" else SPAM)]
    names = [name for name, _, _ in rows]
    batch = host.batch([text for _, text, _ in rows])
    optimiser = torch.optim.AdamW(host.parameters(), lr=3e-3, weight_decay=0)
    for step in range(20):
        keys = host.keys({name: (seed, step) for seed, name in enumerate(methods)})
        logits = host.logits(batch, names, keys)
        losses = [F.cross_entropy(row, torch.tensor(label)) for row, (_, _, label) in zip(logits, rows, strict=True)]
        torch.stack(losses).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        for (name, text, label), row in zip(rows, host.logits(batch, names), strict=True):
            print(f"{name:6} {text:28} {row.softmax(-1).max():.2f} {'right' if row.argmax() == label else 'wrong'}")
    host.base.verify()
    print("the base is unchanged:", host.base.fingerprint[:19])


if __name__ == "__main__":
    main()
