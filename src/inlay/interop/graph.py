"""The host's own forward pass as a module of nothing but tensors, to be traced: each row has the number of its task.

Rows come as a tokenizer gives them, padded at their end, and in any order. A row's matrices are gathered from the
stacks, where the host multiplies runs of rows: slower with many tokens, but nothing has to be planned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.bank.delta import Delta, Signal
from inlay.bank.group import Mount
from inlay.bank.passes import Action, LayerActions, Pass
from inlay.bank.planning import first_position
from inlay.bank.route import Route
from inlay.base.load import Base
from inlay.base.sites import Site, config_of
from inlay.engine.host import Host
from inlay.heads.head import ROWS, TOKENS
from inlay.heads.pool import POOLS
from inlay.tasks import NOTHING


class RowRoute(Route):
    """A route by the entry of every row; all rows have the same number of tokens."""

    def __init__(self, entry: Tensor, inside: Tensor | None, length: int):
        """
        Args:
            entry: [rows]; that of a row that is not in the group does not matter.
            inside: [rows] whether the row is in the group; None if all are.
        """
        self.entry = entry
        self.inside = None if inside is None else inside.view(-1, 1, 1)
        self.length = length

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A batched product over rows."""
        rows = x.view(self.entry.shape[0], self.length, x.shape[-1])
        out = rows @ weight.index_select(0, self.entry)
        if bias is not None:
            out = out + bias.index_select(0, self.entry).unsqueeze(1)
        return self._inside_only(out).flatten(0, 1)

    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """The row's vector, for each of its tokens."""
        of_row = self._inside_only(p.index_select(0, self.entry).unsqueeze(1))
        return of_row.expand(of_row.shape[0], self.length, of_row.shape[2]).flatten(0, 1)

    def _inside_only(self, out: Tensor) -> Tensor:
        """Zeros for rows outside the group. An entry of zeros would do it too, but costs the room of an adapter."""
        return out if self.inside is None else torch.where(self.inside, out, torch.zeros((), dtype=out.dtype))


@dataclass(frozen=True)
class Mounted:
    """A mount in the graph."""

    site: Site
    delta: Delta
    tensors: Mapping[str, str]
    """The delta's tensor name -> the graph's."""
    entries: str
    """The graph's tensor [tasks]: the entry of every task."""
    inside: str | None
    """The graph's tensor [tasks]: whether the task is in the group; None if all are."""


class GraphPass(Pass):
    """A pass over padded rows of any tasks."""

    def __init__(self, graph: Graph, task_id: Tensor, length: int, pooler: bool = False):
        super().__init__(graph.wants)
        self.graph = graph
        self.task_id = task_id
        self.length = length
        self.pooler = pooler
        self._routes: dict[str, Route] = {}

    def at(self, site: Site) -> Sequence[Action]:
        """Everything that is mounted there: the tasks in the batch are not known yet."""
        if site.kind == "pooler" and not self.pooler:
            return ()
        return [self.action(mounted) for mounted in self.graph.mounted.get(site.name, ())]

    def action(self, mounted: Mounted) -> Action:
        """A mount's delta, its tensors, and the rows' entries in them."""
        if mounted.entries not in self._routes:
            entry = self.graph.tensor(mounted.entries).index_select(0, self.task_id)
            members = None if mounted.inside is None else self.graph.tensor(mounted.inside)
            inside = None if members is None else members.index_select(0, self.task_id)
            self._routes[mounted.entries] = RowRoute(entry, inside, self.length)
        tensors = {name: self.graph.tensor(name_in_graph) for name, name_in_graph in mounted.tensors.items()}
        return mounted.delta, tensors, self._routes[mounted.entries]

    def drop(self, here: LayerActions, place: str, p: float, training: bool, y: Tensor) -> Tensor:
        """Nothing is dropped: a graph is for answers."""
        return y

    def drop_attention(self, probabilities: Tensor, plain: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Nothing is dropped."""
        return probabilities


class Graph(nn.Module):
    """A base and some of a host's adapters: token ids and a task per row in, logits out."""

    def __init__(self, host: Host, names: Sequence[str]):
        super().__init__()
        self.base = host.base.model
        self.adapters = nn.Module()
        self._host = host
        self._slots = [host.slot(name) for name in names]
        self.pools = [host.pool(name) for name in names]
        self.wants = frozenset(want for slot in self._slots for want in host.forward.bank.slot(slot).wants)
        self.takes_types = takes_types(host.base)
        self._routes: dict[tuple[Any, ...], int] = {}
        self.mounted: dict[str, list[Mounted]] = {}
        for site, mounts in host.forward.bank.mounts.items():
            mounted = [self._mount(mount) for mount in mounts if set(mount.slots) & set(self._slots)]
            self.mounted |= {site: mounted} if mounted else {}
        widths = [len(host.labels(name)) for name in names]
        self._keep("task_widths", torch.tensor(widths))
        self._keep("task_pools", torch.tensor([POOLS.index(pool) for pool in self.pools]))
        self.outputs = {
            place: max(width for width, pool in zip(widths, self.pools, strict=True) if (pool == "tokens") == tokens)
            for place, tokens in ((ROWS, False), (TOKENS, True))
            if any((pool == "tokens") == tokens for pool in self.pools)
        }
        """The kinds of heads that occur -> the most labels of a head."""

    def tensor(self, name: str) -> Tensor:
        """A tensor of the adapters."""
        tensor: Tensor = self.adapters.get_buffer(name)
        return tensor

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, task_id: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """ids, mask and types [rows, length], task_id [rows] -> [rows, widest] and [rows, length, widest]."""
        rows, length = input_ids.shape
        inputs = _model_inputs(self._host.base, input_ids, attention_mask, token_type_ids)
        states = self._host.forward.call(GraphPass(self, task_id, length), inputs)
        outputs = []
        if ROWS in self.outputs:
            pooled = self._pooled(states.view(rows, length, -1), attention_mask, task_id)
            outputs.append(self._answers(ROWS, pooled, task_id, 1).view(rows, -1))
        if TOKENS in self.outputs:
            answers = self._answers(TOKENS, states, task_id, length)
            outputs.append(answers.masked_fill(attention_mask.unsqueeze(2) == 0, NOTHING))
        return tuple(outputs)

    def _pooled(self, states: Tensor, mask: Tensor, task_id: Tensor) -> Tensor:
        """[rows, d], each row pooled in the way of its task."""
        by_kind = {kind: self._pool(kind, states, mask, task_id) for kind in sorted({*self.pools} - {"tokens"})}
        (_, pooled), *others = by_kind.items()
        chosen = self.tensor("task_pools").index_select(0, task_id).unsqueeze(1)
        for kind, rows in others:
            pooled = torch.where(chosen == POOLS.index(kind), rows, pooled)
        return pooled

    def _pool(self, kind: str, states: Tensor, mask: Tensor, task_id: Tensor) -> Tensor:
        if kind == "mean":
            weight = mask.to(states.dtype).unsqueeze(2)
            return (states * weight).sum(1) / weight.sum(1).clamp(min=1.0)
        if kind == "last":
            last = (mask.sum(1) - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[2])
            return states.gather(1, last).squeeze(1)
        first = states[:, 0]
        return self._pooler(first, task_id) if kind == "pooler" else first

    def _pooler(self, first: Tensor, task_id: Tensor) -> Tensor:
        host, model = self._host, self._host.base.model
        site = host.base.sites.at("pooler")
        assert site is not None
        activation = model.get_submodule(host.base.sites.arch.pooler_activation)
        with host.forward.wiring.running(GraphPass(self, task_id, 1, pooler=True)):
            pooled: Tensor = activation(model.get_submodule(site.path)(first))
        return pooled

    def _answers(self, place: str, x: Tensor, task_id: Tensor, length: int) -> Tensor:
        """[rows, length, widest]; a task that is not in a group of heads gets zeros from it, so they add up."""
        state, widest = GraphPass(self, task_id, length), self.outputs[place]
        total: Tensor | None = None
        for mounted in self.mounted[place]:
            delta, tensors, route = state.action(mounted)
            values = delta.difference(route, tensors, Signal(mounted.site, x, x))[:, :widest]
            values = F.pad(values, (0, widest - values.shape[1]))
            total = values if total is None else total + values
        assert total is not None
        widths = self.tensor("task_widths").index_select(0, task_id)
        is_place = self.tensor("task_pools").index_select(0, task_id) == POOLS.index("tokens")
        widths = torch.where(is_place if place == TOKENS else ~is_place, widths, 0)
        beyond = torch.arange(widest) >= widths.unsqueeze(1)
        return total.view(task_id.shape[0], length, widest).masked_fill(beyond.unsqueeze(1), NOTHING)

    def _mount(self, mount: Mount) -> Mounted:
        """Keep the entries of the chosen slots in a mount, and no others."""
        group = mount.group
        slots = self._slots_that_share(mount)
        index = torch.tensor([group.entry_of[slot] for slot in slots])
        shared = {name for name, full in mount.names.items() if full in group.shared}
        stacks = {n: s.detach() if n in shared else s.detach().index_select(0, index) for n, s in mount.tensors.items()}
        prefix = f"{type(group.delta).__name__}{group.number}"
        names = {
            name: self._keep(f"{prefix} {mount.names[name]}", stack)
            for name, stack in group.delta.effective(stacks, None).items()
        }
        inside = [slot in mount.slots for slot in self._slots]
        entries = [slots.index(slot) if here else 0 for slot, here in zip(self._slots, inside, strict=True)]
        # many mounts have the same route, so a table is named by its content
        number = self._routes.setdefault((tuple(entries), tuple(inside)), len(self._routes))
        route = self._keep(f"entries{number}", torch.tensor(entries))
        members = None if all(inside) else self._keep(f"inside{number}", torch.tensor(inside))
        return Mounted(mount.site, group.delta, names, route, members)

    def _slots_that_share(self, mount: Mount) -> list[int]:
        """The chosen slots in any mount that shares a stack with this one, directly or through others."""
        bank = self._host.forward.bank
        mounts = [m for of_site in bank.mounts.values() for m in of_site if m.group is mount.group]
        names: set[str] = set()
        wider = set(mount.names.values())
        while wider != names:
            names = wider
            near = [m for m in mounts if names & set(m.names.values())]
            wider = names.union(*(m.names.values() for m in near))
        return [slot for slot in self._slots if any(slot in m.slots for m in near)]

    def _keep(self, name: str, tensor: Tensor) -> str:
        """Register a tensor once, under a name that a module may have: rows that mounts share stay shared."""
        name = re.sub(r"\W+", "_", name)
        if not hasattr(self.adapters, name):
            self.adapters.register_buffer(name, tensor)
        return name


def takes_types(base: Base) -> bool:
    """Whether token types make a difference; RoBERTa has only one type."""
    return base.sites.arch.token_types and int(getattr(config_of(base.model), "type_vocab_size", 0)) > 1


def _model_inputs(base: Base, ids: Tensor, mask: Tensor, types: Tensor | None) -> dict[str, Any]:
    """The model's arguments, with positions, since some models would count them from the padding."""
    inputs: dict[str, Any] = {"use_cache": False} if base.sites.arch.decoder else {}
    positions = torch.arange(ids.shape[1]) + first_position(base)
    inputs |= {"input_ids": ids, "attention_mask": mask, "position_ids": positions.unsqueeze(0).expand(ids.shape)}
    if base.sites.arch.token_types:
        inputs["token_type_ids"] = torch.zeros_like(ids) if types is None else types
    return inputs
