"""Host: one frozen base and any number of adapters with their heads, in any mix, in one batch.

    host = Host()                                              # or a hub name, a folder, a loaded model
    host.add("spam", "houlsby:size=64", labels=["ham", "spam"])
    host.add("tone", "adapterbias", labels=["bad", "good"])
    logits = host.logits(host.batch(["you won a prize", "a fine day"]), ["spam", "tone"])

A name stands for a slot. `add` makes a fresh adapter, `load` takes an existing one, `adapter` takes a snapshot,
`unload` forgets one; none of them touches another adapter.

Threads may share a host: a lock lets in one at a time, and answers do not change. A caller's own backward pass is
outside the lock: with `checkpointing`, which runs layers again there, a host is for one thread.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from inlay.bank import sparse
from inlay.bank.bank import BASE
from inlay.bank.delta import Method, SlotMethod, params_of, parse
from inlay.bank.forward import Forward
from inlay.bank.noise import Keys
from inlay.bank.records import Record
from inlay.base.copies import to_cpu
from inlay.base.load import Base, keep_as, load, load_tokenizer, ready
from inlay.data.batch import Batch
from inlay.engine import ensembles, run
from inlay.engine.graphs import Graphs, Shape, Work
from inlay.engine.loaded import Loaded, label_names
from inlay.engine.predict import Request, longest, predict
from inlay.engine.run import Hidden
from inlay.engine.translate import Translator
from inlay.errors import AdapterError, BaseError, InlayError, SlotError, suggest
from inlay.heads.pool import choose
from inlay.library.adapter import Adapter
from inlay.library.ensemble import Ensemble
from inlay.tasks import Answer, Task
from inlay.tasks import parse as parse_task

_FEW = 6
"""How many adapters `repr` names."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _alone(method: Callable[Concatenate[Host, _P], _T]) -> Callable[Concatenate[Host, _P], _T]:
    """Let one thread at a time into a method."""

    @functools.wraps(method)
    def locked(self: Host, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class Host:
    """One base, a bank of adapters, their heads."""

    def __init__(
        self,
        base: str | os.PathLike[str] | nn.Module | Base | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        compile: bool | None = None,
        weights: str | None = None,
        trust_remote_code: bool = False,
        allow_pickle: bool = False,
    ):
        """
        Args:
            base: a hub name, a folder, a loaded Hugging Face model, or None for all-MiniLM-L6-v2.
            device, dtype: where and in what the base runs; see `inlay.base.load.load`.
            weights: how to keep the layers' weights: `int8` or `prepack` (fp32, laid out for products), for serving on
                the CPU; `fp8`, for training and serving on CUDA in bf16. Adapters that change the base's own weights
                cannot use any of them. Closing restores a model that was given as an object; a base that was loaded
                by name has released its plain weights, and stays so.
            compile: run layers as compiled code, on CUDA with Triton. It takes 10 to 60 seconds the first time, and is
                kept on disk. None compiles only for long trainings.
        """
        if not isinstance(base, Base):
            flags = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
            base = load(base, device=device, dtype=dtype, weights=weights, **flags)
        else:
            ready(base)
            keep_as(base, weights)
        self.base = base
        self.forward = Forward(base)
        """The bank, with the slots that names stand for, and the forward pass."""
        self.compile = compile
        self.forward.compiled = bool(compile) and self.forward.kernels
        self.graphs = Graphs(base.device)
        """Recorded work, on CUDA."""
        self.lock = threading.RLock()
        """Held by a thread that uses the model or moves tensors."""
        self._loaded: dict[str, Loaded] = {}
        self._changes = 0
        self._translators: dict[str, Translator] = {}
        """Of all names that have a task, ensembles included."""
        self._ensembles: dict[str, Translator] = {}

    @property
    def names(self) -> list[str]:
        """The adapters and ensembles that are loaded."""
        ensembles = dict(self._ensembles)  # copies: another thread may load one meanwhile
        inside = {member.name for ensemble in ensembles.values() for member in ensemble.members}
        return [*(name for name in list(self._loaded) if name not in inside), *ensembles]

    def __repr__(self) -> str:
        names = self.names
        count, few = len(names), ", ".join(names[:_FEW])
        loaded = f"{count:,} adapter{'' if count == 1 else 's'}" + (f": {few}" if count else "")
        return f"<Host {self.base.described}, {loaded}{', ...' if count > _FEW else ''}>"

    def __contains__(self, name: str) -> bool:
        return name in self._loaded or name in self._ensembles

    def add(
        self,
        name: str,
        method: str | Method,
        *,
        labels: Sequence[str] | int = (),
        task: str | Task | None = None,
        head: str = "linear",
        pool: str = "auto",
        seed: int = 0,
    ) -> None:
        """Make a fresh adapter, with a head if labels are given (their names, or how many).

        Args:
            task: what the answers mean; by default classification, or tagging if nothing is pooled.
        """
        method = parse(method)
        names = label_names(labels)
        if names and task is None:
            task = "tagging" if pool == "tokens" else "classification"
        parsed = parse_task(task) if task is not None else None
        if parsed is not None and parsed.per_token:
            pool = "tokens"
        pooling = choose(pool, self.base) if names else "auto"
        kind = (parsed.head if parsed is not None and parsed.head else head) if names else None
        record = Loaded(0, method, method.spec, seed, kind, pooling, names, parsed)
        self.enter(name, record, record.initial(self.base))

    @_alone
    def load(self, adapter: Adapter | Ensemble, name: str | None = None) -> None:
        """Load an adapter or an ensemble, under its own name by default; it must belong to this base, and fit."""
        name = adapter.name if name is None else name
        if isinstance(adapter, Adapter):
            self.enter(name, *self.fitted(adapter))
        else:
            self._refuse_name(name)
            self._ensembles[name] = self._translators[name] = ensembles.load(self, adapter, name)

    def fitted(self, adapter: Adapter) -> tuple[Loaded, dict[str, Tensor]]:
        """What `enter` takes. It changes nothing, so another thread can call it."""
        self.refuse_other_base(adapter.base, adapter.base_name or adapter.about.get("base_name"))
        adapter.check()
        method = parse(adapter.method)
        params = method.params(self.base.sites)
        if not any(n in adapter.tensors for n, p in params.items() if p.role == "gate"):
            method = method.finished()
        if adapter.head is not None and not adapter.labels:
            raise AdapterError("the adapter has a head but no labels")
        pooling = adapter.pool if adapter.head is None else choose(adapter.pool, self.base)
        pruned = frozenset(n.removesuffix(sparse.INDEX) for n in adapter.tensors if n.endswith(sparse.INDEX))
        task = parse_task(adapter.task) if adapter.task else None
        fields = (adapter.method, adapter.seed, adapter.head, pooling, tuple(adapter.labels))
        record = Loaded(0, method, *fields, task, pruned, adapter.about)
        return record, record.fit(self.base, adapter.tensors)

    def refuse_other_base(self, base: str, name: object = None) -> None:
        """Raise if an adapter of this base does not belong here; `name` is what the base was called in its training."""
        expected = self.base.identity("+pooler:" in base)
        if base != expected:
            other = f"{name} ({base})" if name else base
            raise AdapterError(f"this adapter belongs to the base {other}, not to {self.base.name} ({expected})")

    @_alone
    def enter(self, name: str, record: Loaded, tensors: Mapping[str, Tensor]) -> None:
        """Give an adapter its slot; record and tensors are those of `fitted`."""
        self._refuse_name(name)
        method, sites = record.method, self.base.sites
        if (kind := self.base.form) and method.needs_weights(sites):
            without = f"load it on a host without {kind} (--weights plain)"
            raise BaseError(f"{name!r} ({method.name}) works with the base's own weights; {without}")
        parts = record.head_parts(self.base)
        start: Mapping[str, Tensor] = {}
        if isinstance(method, SlotMethod):
            parts = method.parts(sites) + parts
            start = method.start(sites, record.seed)
        slot = self.forward.bank.load(parts, tensors, method, start)
        self._loaded[name] = replace(record, slot=slot, width=0 if record.head is None else record.outputs(self.base))
        if record.task is not None:
            self._translators[name] = Translator(name, record.task, record.labels, record.about.get("columns") or {})

    @_alone
    def adapter(self, name: str, finish: bool = False) -> Adapter:
        """A snapshot; `finish` also applies and drops what only training needs (gates), and notes how many are shut."""
        record = self.loaded(name)
        tensors, about = self.read(name, None if finish else "cpu"), dict(record.about)
        is_banked = isinstance(record.method, SlotMethod)
        params = self.forward.bank.slot(record.slot).params if is_banked else record.params(self.base)
        constants = {n for n, p in params.items() if p.is_fixed}
        if finish:
            head = {n: tensors.pop(n) for n in params_of(record.head_parts(self.base))}
            about |= {"gates": gates_left} if (gates_left := record.method.gates_left(tensors)) else {}
            tensors = record.method.finish(tensors) | head
        for pruned in record.sparse & tensors.keys():
            tensors |= sparse.encode(pruned, tensors.pop(pruned))
        stored = {n: t for n, t in tensors.items() if n not in constants}
        stored = to_cpu(stored) if finish else stored
        uses_pooler = record.pool == "pooler" or any(n.startswith("pooler") for n in stored)
        fields = (record.seed, record.head, record.pool, record.labels, name)
        task = "" if record.task is None else record.task.spec
        return Adapter(record.spec, self.base.identity(uses_pooler), stored, *fields, task, about, self.base.place)

    @_alone
    @torch.no_grad()
    def read(self, name: str, device: str | None = None) -> dict[str, Tensor]:
        """A copy of all of an adapter's tensors, on its device or on another."""
        if device == "cpu":
            return to_cpu({n: place.tensor for n, place in self.forward.bank.places(self.slot(name)).items()})
        return self.forward.bank.read(self.slot(name), device)

    @_alone
    def write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite these tensors of an adapter in place; its others stay."""
        slot = self.slot(name)
        if unknown := sorted(tensors.keys() - self.forward.bank.places(slot).keys()):
            raise SlotError(f"{name!r} has no tensor {unknown[0]!r}")
        self.forward.bank.write(slot, tensors)

    @_alone
    def unload(self, name: str) -> None:
        """Forget an adapter or an ensemble."""
        if name in self._ensembles:
            del self._translators[name]
            for member in self._ensembles.pop(name).members:
                self.unload(member.name)
            return
        slot = self.slot(name)
        del self._loaded[name]
        self._translators.pop(name, None)
        self.forward.bank.unload(slot)

    @_alone
    def close(self) -> None:
        """Take Inlay out of the model again: it then computes what it did before, bit for bit."""
        self.graphs.clear()
        if self.forward.wiring.remove():
            self.base.restore()

    def slot(self, name: str | None) -> int:
        """The slot of a name; None is the bare base."""
        return BASE if name is None else self.loaded(name).slot

    def keys(self, steps: Mapping[str, tuple[int, int]], without_dropout: Iterable[str] = ()) -> Keys:
        """Training mode for these adapters: name -> (seed, step)."""
        if not self.base.trains:
            kind = self.base.form
            raise BaseError(f"{self.base.name} runs in {kind}, which is for serving; train on a host without {kind}")
        without = frozenset(self.slot(name) for name in without_dropout)
        return Keys({self.slot(name): key for name, key in steps.items()}, without)

    def task(self, name: str) -> Task:
        """What an adapter's answers mean."""
        task = self._ensembles[name].task if name in self._ensembles else self.loaded(name).task
        if task is None:
            raise SlotError(f"{name!r} has no task; add it with labels, and a task if it is not classification")
        return task

    def labels(self, name: str) -> tuple[str, ...]:
        """The names of an adapter's outputs."""
        return self._ensembles[name].labels if name in self._ensembles else self.loaded(name).labels

    def head(self, name: str) -> str | None:
        """The kind of an adapter's head; None if it has none."""
        return self.loaded(name).head

    def pool(self, name: str) -> str:
        """How an adapter's head pools rows."""
        return self.loaded(name).pool

    def translator(self, name: str) -> Translator:
        """The translator of an adapter or an ensemble, between requests and rows, logits and answers."""
        if name not in self._translators:
            self.task(name)  # says what is missing
        return self._translators[name]

    @_alone
    def predict(
        self,
        requests: Sequence[Request],
        *,
        top_k: int | None = None,
        threshold: float | str | None = None,
        raw: bool = False,
    ) -> list[Answer]:
        """Answers for any mix of adapters, in order: `host.predict([("spam", "you won"), ("tone", "a fine day")])`.

        Args:
            requests: (adapter, what to answer): a text, a pair (text, text), a list of words, or a mapping such as
                {"question": ..., "context": ...}.
            top_k: how many of the scores to keep.
            threshold: below this score the label is None: the adapter abstains. `uncertainty=0.1`: the same where the
                members of an ensemble disagree more than that.
            raw: scores without calibration.
        """
        return predict(self, requests, top_k=top_k, threshold=threshold, raw=raw)

    @property
    def checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass instead of keeping their activations."""
        return self.forward.wiring.checkpointing

    @checkpointing.setter
    def checkpointing(self, on: bool) -> None:
        self.forward.wiring.checkpointing = on

    @_alone
    def penalty(self, name: str) -> Tensor | None:
        """What an adapter's gates add to its loss (L0, diff pruning); None without gates."""
        return self.forward.bank.penalty(self.slot(name))

    def parameters(self) -> list[nn.Parameter]:
        """Everything that trains. A stack holds all adapters of a group, so a plain optimiser over these must not
        decay weights (it would decay the neighbours too), and must be made anew when adapters come or go."""
        return list(self.forward.bank.parameters())

    @_alone
    def gradients(self, name: str) -> dict[str, Tensor | None]:
        """One adapter's own gradients at their true sizes."""
        return self.forward.bank.gradients(self.slot(name))

    @_alone
    def batch(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Batch:
        """Tokenize; texts longer than the base takes are cut."""
        if isinstance(texts, str) or isinstance(pairs, str):
            raise InlayError("give a list of texts, not one text")
        if pairs is not None and len(pairs) != len(texts):
            raise InlayError(f"there are {len(texts)} texts but {len(pairs)} pairs")
        tokenizer = load_tokenizer(self.base)
        both = (list(texts), None if pairs is None else list(pairs))
        encoded = tokenizer(*both, truncation=True, max_length=longest(self, tokenizer))
        return Batch.of(encoded["input_ids"], encoded.get("token_type_ids"))

    @_alone
    def hidden(
        self, batch: Batch, names: Sequence[str | None], keys: Keys | None = None, packed: bool | None = None
    ) -> Hidden:
        """The last hidden states; names[i] is the adapter of row i, None the bare base."""
        return run.hidden(self, batch, names, keys, packed)

    @_alone
    def logits(
        self, batch: Batch, names: Sequence[str | None], keys: Keys | None = None, packed: bool | None = None
    ) -> list[Tensor]:
        """One tensor per row: [labels], or [tokens, labels] where the adapter answers for every token."""
        return run.logits(self, batch, names, keys, packed)

    @_alone
    def logits_on_cpu(self, batch: Batch, names: Sequence[str | None]) -> list[Tensor]:
        """Like `logits`, without gradients and on the CPU: one copy from the device, not one per row."""
        return run.logits_on_cpu(self, batch, names)

    def run_recorded(
        self, plan: Record, shape: Shape | None, work: Work, before: Callable[[], None] | None = None
    ) -> Any:
        """Run work on a plan, from a recording where there is one; see `Graphs.run`."""
        bank = self.forward.bank
        if bank.changes != self._changes:
            self._changes = bank.changes
            self.graphs.keep([group.state for group in bank.groups.values()])
        return self.graphs.run(plan, shape, work, before)

    def loaded(self, name: str) -> Loaded:
        """The record of an adapter."""
        if name not in self._loaded:
            ensembles.refuse(name, self._ensembles)
            raise SlotError(f"no adapter named {name!r} is loaded. {suggest(name, self.names)}")
        return self._loaded[name]

    def _refuse_name(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise SlotError(f"an adapter needs a name, not {name!r}")
        if name in self:
            raise SlotError(f"an adapter named {name!r} is already loaded; unload it first")
