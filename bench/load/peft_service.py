"""A straightforward service of many tasks with peft: FastAPI, micro-batches, `adapter_names`, a linear head per task.

    python peft_service.py FOLDER PORT

FOLDER has `base.txt` (the base's folder), `tasks.json` (name -> labels, pool) and, per task, a peft directory and
`head.safetensors`. One thread owns the model, takes up to 32 requests or what has come within 2 ms, pads them to the
longest and runs them as one batch: what a good engineer would write in an afternoon, and what Inlay is compared with.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from peft import PeftModel
from pydantic import BaseModel
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

MOST, WAIT = 32, 0.002


class Item(BaseModel):
    task: str
    text: str


class Body(BaseModel):
    requests: list[Item]


class Server:
    def __init__(self, folder: Path):
        base = (folder / "base.txt").read_text().strip()
        self.tasks = json.loads((folder / "tasks.json").read_text())
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        model = AutoModel.from_pretrained(base, attn_implementation="sdpa", dtype=torch.float32)
        names = list(self.tasks)
        self.model = PeftModel.from_pretrained(model, folder / names[0], adapter_name=names[0])
        for name in names[1:]:
            self.model.load_adapter(folder / name, adapter_name=name)
        self.model.eval()
        self.heads = {name: load_file(folder / name / "head.safetensors") for name in names}
        self.waiting: queue.Queue[tuple[Item, asyncio.Future[Any], asyncio.AbstractEventLoop]] = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while True:
            batch = [self.waiting.get()]
            end = time.monotonic() + WAIT
            while len(batch) < MOST:
                try:
                    batch.append(self.waiting.get(timeout=max(0.0, end - time.monotonic())))
                except queue.Empty:
                    break
            answers = self.answer([item for item, _, _ in batch])
            for (_, future, loop), answer in zip(batch, answers, strict=True):
                loop.call_soon_threadsafe(_give, future, answer)

    @torch.inference_mode()
    def answer(self, items: list[Item]) -> list[dict[str, Any]]:
        names = [item.task for item in items]
        rows = self.tokenizer([item.text for item in items], padding=True, truncation=True, return_tensors="pt")
        states = self.model(**rows, adapter_names=names).last_hidden_state
        mask = rows["attention_mask"].unsqueeze(2)
        pooled = (states * mask).sum(1) / mask.sum(1)
        found = []
        for row, item in zip(pooled, items, strict=True):
            head = self.heads[item.task]
            scores = (row @ head["weight"] + head["bias"]).softmax(0).tolist()
            by_label = dict(zip(self.tasks[item.task], scores, strict=True))
            label = max(by_label, key=lambda name: by_label[name])
            found.append({"task": item.task, "label": label, "score": by_label[label], "scores": by_label})
        return found


def _give(future: asyncio.Future[Any], answer: dict[str, Any]) -> None:
    if not future.done():
        future.set_result(answer)


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(2)

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.server = await asyncio.to_thread(Server, folder)
        yield

    app = FastAPI(lifespan=life)

    @app.post("/v1/predict")
    async def predict(body: Body) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in body.requests]
        for item, future in zip(body.requests, futures, strict=True):
            app.state.server.waiting.put((item, future, loop))
        return {"results": await asyncio.gather(*futures)}

    @app.get("/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
