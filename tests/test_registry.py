"""Methods from outside the package are full citizens, whether by decorator or by entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest
import tiny
import torch

import inlay
from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors, parse, parse_list
from inlay.bank.route import Route
from inlay.base.shapes import sites_of
from inlay.base.sites import Site, Sites
from inlay.config import option
from inlay.errors import SpecError
from inlay.registry import Registry, methods, tasks

OUTSIDE = f"""
from dataclasses import dataclass
from {__name__} import Rescale


@dataclass(frozen=True, kw_only=True)
class Outside(Rescale):
    pass
"""


@dataclass(frozen=True)
class Scale(Delta):
    """y times one plus a vector."""

    def params(self, site: Site) -> dict[str, Param]:
        return {"scale": Param((site.d_out,))}

    def difference(self, route: Route, p: Tensors, at: Signal) -> torch.Tensor:
        return at.y * route.vector(p["scale"], at.y)


@dataclass(frozen=True, kw_only=True)
class Rescale(SlotMethod):
    """A method that is not in the package."""

    sites: str = option("attn.k", "which projections, joined by +")

    def parts(self, sites: Sites) -> list[Part]:
        found = sites.select(tuple(self.sites.split("+")), sites.choose_layers(self.layers))
        return [Part(site, Scale(), site.name) for site in found]


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    """Forget what a test adds; the package's own methods stay, for their modules are not run again."""
    yield
    for name, cls in list(methods._classes.items()):
        if not cls.__module__.startswith("inlay.methods."):
            del methods._classes[name]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A distribution on the path whose entry point `outside` names a method; gives its module's name."""
    module = "inlay_outside_method"
    (tmp_path / f"{module}.py").write_text(OUTSIDE)
    info = tmp_path / "inlay_outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inlay-outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[inlay.methods]\noutside = {module}:Outside\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield module
    sys.modules.pop(module, None)


def assert_full_citizen(name: str) -> None:
    assert name in methods.names()
    spec = f"{name}:layers=top2,sites=attn.k+attn.v"
    method = parse(f"{name}:sites=attn.k+attn.v,layers=top2")
    assert method.spec == spec
    assert parse(spec) == method
    assert [m.spec for m in parse_list(f"lora:rank=4,{spec},bitfit")] == ["lora:rank=4", spec, "bitfit"]
    with pytest.raises(SpecError, match=rf"{name} has no option 'site'. Did you mean sites"):
        parse(f"{name}:site=attn.q")
    sites = sites_of("minilm-l6")
    assert method.count(sites) == 2 * 2 * 384
    assert method.by_site(sites) == {"attn.k": 768, "attn.v": 768}
    assert_loads(spec)


def assert_loads(spec: str) -> None:
    """Beside another method, in one batch, and again from a snapshot."""
    host, batch = tiny.host(), tiny.batch(4)
    names = [None, "new", "other", None]
    with torch.no_grad():
        bare = host.hidden(batch, [None] * 4).rows()
        host.add("other", "bitfit")
        host.add("new", spec, labels=2, seed=3)
        fresh = host.hidden(batch, ["new"] * 4).rows()
        assert all(torch.equal(a, b) for a, b in zip(fresh, bare, strict=True))
        tiny.shake(host, "new")
        mixed, logits = host.hidden(batch, names).rows(), host.logits(batch, ["new"] * 4)
        assert not torch.allclose(mixed[1], bare[1], atol=1e-3)
        for row in (0, 2, 3):
            torch.testing.assert_close(mixed[row], bare[row])
        host.load(host.adapter("new"), "again")
        again = host.logits(batch, ["again"] * 4)
    assert all(torch.equal(a, b) for a, b in zip(logits, again, strict=True))


def test_a_method_from_a_notebook_is_a_full_citizen():
    assert inlay.method("rescale")(Rescale) is Rescale
    assert methods.find("rescale") is Rescale
    assert_full_citizen("rescale")


def test_a_method_from_an_entry_point_is_a_full_citizen(installed: str):
    assert "outside" in methods.names()
    assert installed not in sys.modules  # nothing is imported until it is asked for
    assert methods.find("outside").__module__ == installed
    assert_full_citizen("outside")


def test_an_entry_point_goes_with_its_distribution():
    assert "outside" not in methods.names()
    with pytest.raises(SpecError, match="unknown method 'outside'"):
        methods.find("outside")


def test_an_entry_point_may_also_register_itself(installed: str, tmp_path: Path):
    line = "from inlay.registry import methods\nmethods.register('outside')(Outside)\n"
    (tmp_path / f"{installed}.py").write_text(OUTSIDE + line)
    assert methods.find("outside").__qualname__ == "Outside"


def test_a_broken_name_is_an_error_that_names_methods_of_all_three_kinds(installed: str):
    inlay.method("rescale")(Rescale)
    with pytest.raises(SpecError, match="Did you mean outside") as caught:
        methods.find("outsde")
    for name in ("houlsby", "outside", "rescale"):
        assert name in str(caught.value).partition("Valid:")[2]


def test_names_lists_each_once_in_order(installed: str):
    inlay.method("rescale")(Rescale)
    methods.find("outside")
    methods.find("lora")
    found = methods.names()
    assert found == sorted(set(found))
    assert {"adapterbias", "bitfit", "diffprune", "finetune", "frozen", "houlsby", "lora", "norms"} <= set(found)


def test_a_taken_name_is_refused_and_says_by_whom():
    methods.find("lora")
    with pytest.raises(SpecError, match=r"method name 'lora' is taken by inlay\.methods\.lora\.Lora"):
        methods.register("lora")(Rescale)
    assert methods.find("lora").__module__ == "inlay.methods.lora"


def test_a_name_of_the_package_is_taken_before_its_module_is_imported():
    registry = Registry("method", "inlay.methods")
    with pytest.raises(SpecError, match="'lora' is taken"):
        registry.register("lora")(Rescale)


@pytest.mark.parametrize(("option", "owner"), [("start", "SlotMethod"), ("spec", "Method"), ("retunes", "Method")])
def test_an_option_that_hides_part_of_a_method_is_refused(option: str, owner: str):
    hiding = make_dataclass("Hiding", [(option, int, 3)], bases=(Rescale,), frozen=True, kw_only=True)
    with pytest.raises(SpecError, match=f"the option '{option}' of Hiding hides {owner}.{option}; rename it"):
        inlay.method("hiding")(hiding)
    assert "hiding" not in methods.names()


@pytest.mark.parametrize("option", ["losses", "kind", "spec"])
def test_an_option_that_hides_part_of_a_task_is_refused(option: str):
    hiding = make_dataclass("Hiding", [(option, int, 3)], bases=(tasks.find("classification"),), frozen=True)
    with pytest.raises(SpecError, match=f"the option '{option}' of Hiding hides (Classification|Task).{option}"):
        inlay.task("hiding")(hiding)
    assert "hiding" not in tasks.names()


def test_an_option_may_have_another_default_in_a_class_that_derives_from_it():
    inlay.method("other")(make_dataclass("Other", [("sites", str, "attn.q")], bases=(Rescale,), frozen=True))
    assert parse("other").spec == "other"


def test_a_notebook_cell_may_run_twice():
    def cell() -> type[SlotMethod]:
        @inlay.method("again")
        @dataclass(frozen=True, kw_only=True)
        class Again(Rescale):
            pass

        return Again

    first, second = cell(), cell()
    assert first is not second
    assert methods.find("again") is second


def test_listing_names_imports_neither_torch_nor_a_method():
    code = "import sys, inlay; from inlay.registry import methods; print('lora' in methods.names()); "
    code += "print([m for m in sys.modules if m == 'torch' or m.startswith('inlay.methods.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["True", "[]"]
