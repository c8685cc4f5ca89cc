"""What others rely on: the public names, a light import, and a core that needs three packages."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay.errors import InlayError
from inlay.registry import methods

PUBLIC = [
    "Adapter",
    "AsyncClient",
    "Batch",
    "Client",
    "Comparison",
    "Ensemble",
    "Host",
    "InlayError",
    "Library",
    "Result",
    "Run",
]
PUBLIC += [
    "Sweep",
    "__version__",
    "attach",
    "compare",
    "method",
    "parse_method",
    "parse_task",
    "sweep",
    "task",
    "train",
]
OPTIONAL = ["typer", "rich", "pydantic", "peft", "accelerate", "sklearn", "scipy", "datasets", "fastapi", "matplotlib"]
OPTIONAL += ["optuna"]

WITHOUT = """
import sys

class Without:
    def __init__(self, finder, names):
        self.finder, self.names = finder, names
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

blocked = set({blocked!r})
sys.meta_path[:] = [Without(finder, blocked) for finder in sys.meta_path]
"""
"""Every finder is asked on our behalf, and finds no package of these names: as if they were not installed."""

CORE = """
import importlib, pkgutil, json
import inlay, inlay.engine.host, inlay.engine.attach, inlay.methods
names = [m.name for m in pkgutil.iter_modules(inlay.methods.__path__)]
for name in names:
    importlib.import_module("inlay.methods." + name)
import torch, transformers
size = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=60)
host = inlay.Host(transformers.BertModel(transformers.BertConfig(**size)))
batch = inlay.Batch.of([[5, 6], [7]])
for name in names:
    host.add(name, name, labels=2)
    assert host.logits(batch, [name] * 2)[1].shape == (2,)
host.close()
inlay.attach(host.base.model, "houlsby").adapter().save({path!r})
inlay.Adapter.read({path!r})
found = sorted(blocked & {m.partition(".")[0] for m in sys.modules})
print(json.dumps([names, found]))
"""


def run(code: str) -> Any:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_public_names():
    assert inlay.__all__ == PUBLIC
    assert dir(inlay) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name):
    space: dict[str, Any] = {}
    exec(f"from inlay import {name}", space)
    assert space[name] == getattr(inlay, name)
    assert space[name] is not None


def test_a_star_import_gives_the_public_names():
    space: dict[str, Any] = {}
    exec("from inlay import *", space)
    assert set(space) - {"__builtins__"} == set(PUBLIC)


def test_public_names_are_what_they_say():
    assert issubclass(inlay.InlayError, Exception)
    assert [inspect.isclass(getattr(inlay, n)) for n in ("Adapter", "Batch", "Host")] == [True] * 3
    assert inlay.parse_method("lora:rank=4").spec == "lora:rank=4"
    assert inlay.method == methods.register
    assert inlay.__version__.count(".") == 2
    assert inlay.InlayError is InlayError


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'inlay' has no attribute 'Hots'"):
        inlay.Hots  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Hots'"):
        exec("from inlay import Hots")
    assert not hasattr(inlay, "host")


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "code",
    [
        "import inlay",
        "import inlay; dir(inlay); inlay.InlayError; inlay.__version__",
        "import inlay; inlay.method",
        "import inlay.config, inlay.registry, inlay.errors",
        "import inlay; inlay.Adapter",
        "import inlay; inlay.Client; inlay.AsyncClient",
    ],
)
def test_importing_is_light(code):
    heavy = {"torch", "transformers", "safetensors", "numpy", "typer", "rich"}
    found = run(f"import sys, json; {code}; print(json.dumps(sorted({heavy!r} & set(sys.modules))))")
    assert found == []


@pytest.mark.full
def test_a_name_that_needs_torch_imports_it():
    """The check above can fail."""
    assert run("import sys, json, inlay; inlay.Batch; print(json.dumps('torch' in sys.modules))") is True


@pytest.mark.full
def test_the_core_needs_torch_transformers_and_safetensors_alone(tmp_path: Path):
    code = WITHOUT.format(blocked=OPTIONAL) + CORE.replace("{path!r}", repr(str(tmp_path / "a")))
    names, found = run(code)
    assert names == sorted(methods.names())
    assert found == []


@pytest.mark.full
@pytest.mark.parametrize("package", ["rich", "torch"])
def test_a_blocked_package_is_not_found(package):
    """The check above can fail."""
    code = WITHOUT.format(blocked=[package]) + (
        "import importlib.util, json\n"
        f"missing = importlib.util.find_spec({package!r}) is None\n"
        f"try:\n    import {package}\n    print(json.dumps('imported'))\n"
        "except ModuleNotFoundError:\n    print(json.dumps(missing))\n"
    )
    assert run(code) is True
