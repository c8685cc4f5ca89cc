"""One adapter in a Hugging Face model, with your own training loop (HF's Trainer works the same way).

Run it: python examples/own_loop.py
"""

from __future__ import annotations

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import inlay
from inlay.base.load import load

TEXTS = ["you won a prize, call now", "see you at noon", "free entry, text WIN", "thanks, that was lovely"] * 4
LABELS = torch.tensor([1, 0, 1, 0] * 4)


def main() -> None:
    torch.manual_seed(0)
    folder = str(load().folder)  # all-MiniLM-L6-v2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    attached = inlay.attach(model, "houlsby:size=16")
    trained = [p for p in model.parameters() if p.requires_grad]
    print(f"training {sum(p.numel() for p in trained):,} of {sum(p.numel() for p in model.parameters()):,} parameters")
    optimiser = torch.optim.AdamW(trained, lr=1e-3)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    model.train()
    for step in range(10):
        loss = model(**inputs, labels=LABELS).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")
    attached.adapter().save("own_loop.safetensors")
    print("saved to own_loop.safetensors")
    attached.detach()


if __name__ == "__main__":
    main()
