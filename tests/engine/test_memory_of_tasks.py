"""Perfect memory: what a task answers does not change when others come and go, to the last bit."""

from __future__ import annotations

import pytest
import tiny
import torch

import inlay
from inlay.errors import AdapterError
from inlay.library.library import Library

METHODS = [
    "houlsby:size=4",
    "adapterbias",
    "lora:rank=2",
    "bitfit",
    "norms",
    "houlsby:size=7,where=ffn",
    "finetune:top=1",
]


def task(host: inlay.Host, name: str, seed: int) -> inlay.Adapter:
    """A task that nobody trained, but whose every number differs from the next one's."""
    method = METHODS[seed % len(METHODS)]
    host.add(name, method, labels=2 + seed % 3, head=("linear", "tanh2")[seed % 2], seed=seed)
    tiny.shake(host, name, seed)
    made = host.adapter(name)
    host.unload(name)
    return made


def logits(host: inlay.Host, name: str) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack(host.logits(tiny.batch(6, seed=9), [name] * 6))


def test_a_hundred_further_tasks_and_fifty_removed_change_nothing(tmp_path):
    library, host = Library(tmp_path), tiny.host()
    first = library.put(task(host, "first", 0))
    host.load(library.get("first"))
    before = logits(host, "first")
    fresh = tiny.host()
    for i in range(1, 101):
        name = f"task-{i}"
        library.put(task(fresh, name, i))
        host.load(library.get(name))
    assert torch.equal(logits(host, "first"), before)
    for i in range(1, 101, 2):
        host.unload(f"task-{i}")
        library.remove(f"task-{i}")
    library.gc(grace=-10.0)
    assert len(library.names()) == len(host.names) == 51
    assert torch.equal(logits(host, "first"), before)
    assert library.find("first") == first

    mixed = ["first" if row % 2 else f"task-{2 * row + 2}" for row in range(6)]
    with torch.no_grad():
        rows = host.logits(tiny.batch(6, seed=9), mixed)
    for row in (1, 3, 5):
        tiny.assert_close(rows[row], before[row], "beside others, up to rounding")

    later = tiny.host()
    later.load(library.get("first"))
    assert torch.equal(logits(later, "first"), before), "and in another process's host"
    tiny.shake(host, "first", 99)
    assert not torch.equal(logits(host, "first"), before), "a change would be seen"


def test_a_wrong_base_is_refused_with_both_names(tmp_path):
    library, host, other = Library(tmp_path), tiny.host(), tiny.host(seed=1)
    library.put(task(host, "first", 0), base_name="the-first-base")
    with pytest.raises(AdapterError) as caught:
        other.load(library.get("first"))
    for part in ("the-first-base", host.base.fingerprint, other.base.name, other.base.fingerprint):
        assert part in str(caught.value)
    host.load(library.get("first"))


def test_an_adapter_in_half_precision_answers_as_its_numbers_say(tmp_path):
    """Loading casts; nothing else changes."""
    library, host = Library(tmp_path), tiny.host()
    for seed, method in enumerate(METHODS):
        name = f"task-{seed}"
        made = task(host, name, seed)
        entry = library.put(made.to("float16"))
        assert entry.bytes < len(made.content())
        half = library.get(name)
        assert {t.dtype for t in half.tensors.values() if t.is_floating_point()} == {torch.float16}, method
        host.load(half, "half")
        host.load(half.to("float32"), "whole")
        assert torch.equal(logits(host, "half"), logits(host, "whole")), method
        host.load(made, "exact")
        assert (logits(host, "half") - logits(host, "exact")).abs().max() < 0.05, method
        for one in ("half", "whole", "exact"):
            host.unload(one)
