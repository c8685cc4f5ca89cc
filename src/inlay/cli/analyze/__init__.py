"""`inlay analyze KIND`: the papers' figures for any adapter; a picture twice (PNG, SVG) and its numbers (CSV)."""

from __future__ import annotations

from inlay.cli.analyze import layers, runs, tokens
from inlay.cli.help import App

app = App("Draw the papers' figures for your own adapters and sweeps.")
app.command("ablation")(layers.ablate)
app.command("landscape")(layers.walk)
app.command("rsa")(layers.compare)
app.command("size", context_settings=runs.MORE)(runs.size)
app.command("init", context_settings=runs.MORE)(runs.init)
app.command("tradeoff")(runs.tradeoff)
app.command("robustness", context_settings=runs.MORE)(runs.robustness)
app.command("train-size", context_settings=runs.MORE)(runs.train_size)
app.command("curves", context_settings=runs.MORE)(runs.curves)
app.command("alpha")(tokens.alpha)
app.command("words")(tokens.words)
app.command("shift")(tokens.shift)
app.command("sparsity")(tokens.sparsity)
