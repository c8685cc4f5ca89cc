"""Every fast path against the plain one: kernels, compiled layers, and on CUDA recordings.

Without a GPU kernels run in Triton's interpreter, and layers are compiled as far as the graph: that is where it would
break, or be compiled again for every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch
from interpreted import CUDA, DEVICE

import inlay
from inlay.bank import compiled as compiling
from inlay.engine.predict import batch_of
from inlay.engine.run import plan_with_heads
from inlay.tasks import Row, parse
from inlay.training.adamw import AdamW, Settings
from inlay.training.step import RunStep, Step

ALL = [
    "houlsby:size=16", "lora:rank=4", "adapterbias", "bitfit", "norms", "houlsby:parallel=true,size=8",
    "houlsby:layers=1,size=16", "houlsby:size=4,activation=mish,depth=2,inner_norm=true", "frozen",
]  # fmt: skip
FEW = ["houlsby:size=16", "lora:rank=4", "adapterbias", "norms:layers=1", "bitfit"]
POOLS = ["cls", "mean", "pooler", "tokens"]


def host(methods: Sequence[str], kernels: bool, seed: int = 0, arch: str = "bert") -> inlay.Host:
    made = tiny.host(arch, num_hidden_layers=2, hidden_size=32, max_position_embeddings=140)
    made.base.model.to(DEVICE)
    made = made if made.base.device == made.forward.bank.device else inlay.Host(_closed(made))
    made.forward.kernels = kernels
    made.graphs.on = False
    for i, method in enumerate(methods):
        made.add(f"a{i}", method, labels=2 + i % 2, pool=POOLS[i % len(POOLS)], seed=seed + i)
        tiny.shake(made, f"a{i}")
    return made


def _closed(made: inlay.Host) -> torch.nn.Module:
    made.close()
    return made.base.model


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    if tiny.EXACT:
        torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)
    else:  # a step of AdamW makes much of a small gradient's sign, so single numbers may be further apart
        assert (found.double() - expected.double()).norm() < 0.03 * expected.double().norm()
        torch.testing.assert_close(found, expected, atol=0.15, rtol=0.15)


def rows(count: int, seed: int, longest: int = 12) -> list[Row]:
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, longest, (count,), generator=random).tolist()
    return [Row(torch.randint(5, 60, (n,), generator=random).tolist(), None, int(n % 2)) for n in sizes]


def answers(made: inlay.Host, seed: int = 1, longest: int = 12) -> torch.Tensor:
    names = [f"a{i}" for i in range(len(made.names))] * 2
    with torch.no_grad():
        found = made.logits(batch_of(rows(len(names), seed, longest)), names)
    return torch.cat([logits.flatten() for logits in found]).cpu()


def train(made: inlay.Host, steps: int, first: int = 0) -> torch.Tensor:
    """[steps, runs] the losses of all adapters but those that answer for tokens."""
    step, task = Step(made, AdamW(made.forward)), parse("classification")
    losses = []
    for t in range(first, first + steps):
        parts = [
            RunStep(name, task, rows(2, 100 * t + i), Settings(t + 1, 1e-2, 0.01, 1.0), (i, t), dropout=i != 1)
            for i, name in enumerate(made.names)
            if made.loaded(name).pool != "tokens"
        ]
        losses.append(step(parts, batch_of([row for p in parts for row in p.rows])).cpu().clone())
    return torch.stack(losses)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts how often layers are compiled."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor" if CUDA else "aot_eager")
    call = torch.compile(compiling._call, fullgraph=True, backend=counter)
    monkeypatch.setattr(compiling, "_compile", lambda: call)
    return counter


@pytest.mark.full
def test_kernels_give_what_segments_give():
    plain, fast = host(ALL, False), host(ALL, True)
    close(answers(fast), answers(plain))
    close(train(fast, 2), train(plain, 2))
    for name in plain.names:
        for key, value in plain.read(name).items():
            far = (fast.read(name)[key] - value).abs()  # where a gradient is all but 0, Adam makes much of rounding
            assert far.mean() < (1e-4 if tiny.EXACT else 1e-2), f"{name} {key}"
    wrong = host(ALL, True, seed=50)  # the control
    assert not torch.allclose(answers(wrong), answers(plain), atol=1e-2)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_attention_with_a_bias(compiled):
    """MPNet: in the kernel, in compiled layers, and trained, which needs the bias's own gradient."""
    plain, fast = (host(["lora:rank=4", "houlsby:size=16"], kernels, arch="mpnet") for kernels in (False, True))
    close(answers(fast, longest=60), answers(plain, longest=60))
    fast.forward.compiled = True
    close(answers(fast, longest=60), answers(plain, longest=60))
    close(train(fast, 1), train(plain, 1))
    assert 0 < compiled.frame_count <= 4
    before = compiled.frame_count
    close(answers(fast, 7, 40), answers(plain, 7, 40))
    assert compiled.frame_count == before
    grads = []
    for kernels in (False, True):
        made = host(["finetune"], kernels, arch="mpnet")
        torch.stack(made.logits(batch_of(rows(6, 1, 40)), ["a0"] * 6)).square().sum().backward()
        grads.append(made.gradients("a0")["encoder.relative_attention_bias.weight"])
    close(grads[1], grads[0])
    assert grads[0].abs().max() > 1e-2


def test_a_batch_that_fills_its_bucket():
    """There is no token beyond it for rows of padding to point at."""
    plain, fast = host(FEW[:1], False), host(FEW[:1], True)
    full = batch_of([Row([5] * 12)] * 9 + [Row([6] * 20)])
    names = ["a0"] * 10
    with torch.no_grad():
        found, expected = (torch.stack(made.logits(full, names)).cpu() for made in (fast, plain))
    close(found, expected)


@pytest.mark.full
def test_rows_too_long_for_short_attention():
    plain, fast = host(FEW[:2], False), host(FEW[:2], True)
    close(answers(fast, longest=139), answers(plain, longest=139))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_layers_are_compiled_once(compiled):
    plain, fast = host(FEW, False), host(FEW, True)
    fast.forward.compiled = True
    close(answers(fast), answers(plain))
    close(train(fast, 1), train(plain, 1))
    # serving: one for each set of groups that a layer has; training: one for the first layer, and one for the rest
    assert 0 < compiled.frame_count <= 4
    before = compiled.frame_count
    for made in (plain, fast):
        for i in range(5, 9):  # the stacks grow
            made.add(f"a{i}", FEW[0], labels=2, pool="cls", seed=i)
    close(answers(fast, 7, 60), answers(plain, 7, 60))
    close(train(fast, 1, 1), train(plain, 1, 1))
    assert compiled.frame_count == before, "compiled again for another batch, or for a new task"


@pytest.mark.full
def test_a_layer_that_cannot_be_compiled_runs_as_it_is(monkeypatch):
    tried = []

    def refuses(*_: Any) -> Any:
        tried.append(1)
        raise torch._dynamo.exc.Unsupported("a break in the graph\nand more", case_name="x")

    monkeypatch.setattr(compiling, "_compile", lambda: refuses)
    monkeypatch.setattr(compiling, "_refused", set())
    plain, fast = host(FEW[:2], False), host(FEW[:2], True)
    fast.forward.compiled = True
    with pytest.warns(UserWarning, match="BertLayer cannot be compiled, and runs as it is: a break in the graph"):
        close(answers(fast), answers(plain))
    close(answers(fast, 2), answers(plain, 2))
    assert tried == [1]


def test_what_a_recording_of_changed_weights_depends_on():
    made = host(["finetune", "finetune:top=1", "diffprune", "finetune:mixout=0.5"], True)

    def shape(name: str, count: int = 3, training: bool = True) -> Any:
        keys = made.keys({name: (0, 0)}) if training else None
        plan, _ = plan_with_heads(made, batch_of([Row([5, 6, 7])] * count), [name] * count, keys)
        return plan.shape("step")

    shapes = [shape(name, count) for name in ("a0", "a1") for count in (3, 4)]
    assert None not in shapes
    assert len(set(shapes)) == 2  # a slot has weights of its own; how many rows it has are numbers
    for name in ("a2", "a3"):  # gates and masks are drawn anew for every step
        assert shape(name) is None
        assert shape(name, training=False) is not None
    both, _ = plan_with_heads(made, batch_of([Row([5, 6])] * 2), ["a0", "a1"], None)
    assert both.shape("step") is None


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("method", ["finetune", "finetune:top=1"])
@pytest.mark.parametrize(("arch", "pool"), [("bert", "cls"), ("bert", "pooler"), ("mpnet", "cls")])
def test_recordings_of_changed_weights_give_what_was_recorded(method, arch, pool):
    made = {}
    for recorded in (False, True):
        made[recorded] = one = host([], True, arch=arch)
        one.graphs.on = recorded
        for i in range(2):
            one.add(f"a{i}", method, labels=2, pool=pool, seed=i)
    losses: dict[bool, list[Any]] = {False: [], True: []}
    for recorded, one in made.items():
        step, task = Step(one, AdamW(one.forward)), parse("classification")
        for t in range(6):
            for i in range(2):
                some = rows(8 - t % 2, 100 * t + i)
                part = RunStep(f"a{i}", task, some, Settings(t + 1, 1e-3, 0.01, 1.0), (i, t))
                losses[recorded].append(step([part], batch_of(some)).cpu().clone())
    assert sum(1 for one in made[True].graphs._seen.values() if one) >= 4, "nothing was recorded"
    close(torch.stack(losses[True]), torch.stack(losses[False]))
    for name in ("a0", "a1"):
        for key, value in made[False].read(name).items():
            if "attn.k" not in key and ".key." not in key:
                torch.testing.assert_close(made[True].read(name)[key], value, atol=2e-3, rtol=0)
    assert (losses[True][0] - losses[True][-1]).abs() > 1e-4, "nothing was trained"


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("arch", ["bert", "mpnet"])
def test_recordings_give_what_was_recorded(arch):
    plain, fast = host(FEW, True, arch=arch), host(FEW, True, arch=arch)
    fast.graphs.on = True
    for seed in (1, 1, 1, 2, 2, 3):
        close(answers(fast, seed), answers(plain, seed))
    again = [train(made, 3) for _ in range(2) for made in (plain, fast)]  # the second time with another optimiser
    close(again[1], again[0])
    close(again[3], again[2])
    assert sum(1 for one in fast.graphs._seen.values() if one) >= 2, "nothing was recorded"
    fast.unload("a0")
    plain.unload("a0")
    for made in (plain, fast):
        made.add("a0", "houlsby:size=32", labels=2, seed=9)
    close(answers(fast), answers(plain))
