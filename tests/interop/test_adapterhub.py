"""AdapterHub's adapters give here what the adapters package gives, and ours give there what they give here.

The package needs an older transformers, so it runs in an environment of its own: `make test-peers`. What only looks at
files needs neither.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

import inlay
from inlay.errors import AdapterError
from inlay.interop import adapterhub, peft
from inlay.interop.bottlenecks import _reduction

ROWS = [row.tolist() for row in tiny.rows_of(tiny.batch(4, seed=3))]
ARCHS = ["bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert", "deberta-v2"]
NAMES = {"0": "no", "1": "yes", "2": "perhaps"}
LINEAR = {"type": "classification", "num_labels": 3, "layers": 1, "id2label": NAMES}
TWO = {"type": "classification", "num_labels": 3, "layers": 2}
BN = {"mh_adapter": True, "output_adapter": True, "reduction_factor": 3, "non_linearity": "relu"}


def bottleneck(**changes: Any) -> dict[str, Any]:
    return {**BN, **changes}


CASES: dict[str, dict[str, Any]] = {
    **{f"{a} houlsby": {"arch": a, "config": "double_seq_bn", "head": LINEAR} for a in ARCHS if a != "albert"},
    **{f"{arch} pfeiffer": {"arch": arch, "config": "seq_bn", "head": TWO} for arch in ARCHS},
    **{f"{arch} parallel": {"arch": arch, "config": "par_bn", "head": LINEAR} for arch in ARCHS},
    **{f"{arch} lora": {"arch": arch, "config": "lora", "head": LINEAR} for arch in ARCHS},
    "no head": {"arch": "bert", "config": "double_seq_bn"},
    "pickled": {"arch": "roberta", "config": "seq_bn", "head": TWO, "safe": False},
    "attention alone": {"arch": "bert", "config": bottleneck(output_adapter=False)},
    "albert attention": {"arch": "albert", "config": bottleneck(output_adapter=False)},
    "albert attention, parallel": {"arch": "albert", "config": bottleneck(output_adapter=False, is_parallel=True)},
    "albert pfeiffer twice": {"arch": "albert", "config": bottleneck(original_ln_before=True)},
    "pfeiffer twice": {"arch": "roberta", "config": bottleneck(original_ln_before=True)},
    "parallel twice": {"arch": "bert", "config": bottleneck(is_parallel=True, scaling=0.5)},
    "learnt scale": {"arch": "bert", "config": bottleneck(scaling="learned")},
    "parallel learnt scale": {"arch": "roberta", "config": bottleneck(is_parallel=True, scaling="learned")},
    "channels": {"arch": "bert", "config": bottleneck(scaling="channel", original_ln_before=True)},
    "reductions": {"arch": "bert", "config": bottleneck(reduction_factor={"0": 2, "2": 16, "default": 5})},
    "wider": {"arch": "bert", "config": bottleneck(reduction_factor=0.5)},
    "left out": {"arch": "bert", "config": "seq_bn", "changes": {"leave_out": [1]}, "head": TWO},
    **{
        f"activation {name}": {"arch": "bert", "config": bottleneck(non_linearity=name)}
        for name in ("gelu", "tanh", "swish", "silu", "leakyrelu", "mish", "linear")
    },
    "all lora": {
        "arch": "bert",
        "config": "lora",
        "changes": {
            "attn_matrices": ["q", "k", "v"],
            "intermediate_lora": True,
            "output_lora": True,
            "r": 3,
            "alpha": 7,
            "leave_out": [0],
        },
        "safe": False,
    },
    "relu head": {"arch": "bert", "config": "seq_bn", "head": {**TWO, "activation_function": "relu"}},
    "gelu head": {"arch": "bert", "config": "seq_bn", "head": {**TWO, "activation_function": "gelu"}},
    "pooler": {"arch": "bert", "config": "seq_bn", "head": {**LINEAR, "use_pooler": True}},
    "pooler and two": {"arch": "roberta", "config": "seq_bn", "head": {**TWO, "use_pooler": True}},
    "no bias": {"arch": "bert", "config": "seq_bn", "head": {**LINEAR, "bias": False}},
    "regression": {"arch": "bert", "config": "seq_bn", "head": {**TWO, "num_labels": 1}},
    "tagging": {"arch": "bert", "config": "double_seq_bn", "head": {"type": "tagging", "num_labels": 4}},
    "deep tagging": {"arch": "roberta", "config": "lora", "head": {"type": "tagging", "num_labels": 4, "layers": 2}},
    "questions": {"arch": "bert", "config": "seq_bn", "head": {"type": "qa", "num_labels": 2}},
    "labels": {"arch": "bert", "config": "seq_bn", "head": {**TWO, "multilabel": True}},
    "static bert": {"arch": "bert", "config": "seq_bn", "class": "BertForSequenceClassification", "labels": 3},
    "static roberta": {"arch": "roberta", "config": "lora", "class": "RobertaForSequenceClassification", "labels": 3},
    "static tags": {"arch": "bert", "config": "lora", "class": "BertForTokenClassification", "labels": 5},
}


@pytest.fixture(scope="session")
def bases(tmp_path_factory) -> dict[str, str]:
    """Folders of tiny models."""
    root = tmp_path_factory.mktemp("bases")
    for arch in ARCHS:
        tiny.model(arch).save_pretrained(root / arch)
    return {arch: str(root / arch) for arch in ARCHS}


def peer(what: str, folder: Path, cases: dict[str, Any]) -> dict[str, list[torch.Tensor]]:
    """The outputs of the adapters package for each case, row by row."""
    python = os.environ.get("INLAY_ADAPTERS_PYTHON")
    if not python:
        pytest.fail("INLAY_ADAPTERS_PYTHON must name a Python that has the adapters package: make test-peers")
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "rows.json").write_text(json.dumps(ROWS))
    script = Path(__file__).with_name("peer_adapterhub.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run([python, script, what, folder], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = load_file(folder / "outputs.safetensors")
    return {name: [found[f"{name} {i}"] for i in range(len(ROWS))] for name in cases}


def ours(host: inlay.Host, name: str | None) -> list[torch.Tensor]:
    """Logits, or the hidden states without a head, row by row."""
    batch = inlay.Batch.of(ROWS)
    with torch.no_grad():
        if name is not None and host.labels(name):
            return host.logits(batch, [name] * len(ROWS))
        return host.hidden(batch, [name] * len(ROWS)).rows()


def assert_same(mine: list[torch.Tensor], theirs: list[torch.Tensor], what: str) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape, what
        assert (a - b).abs().max() <= 1e-5, f"{what}: {(a - b).abs().max()}"


@pytest.fixture(scope="session")
def made(bases, tmp_path_factory) -> tuple[Path, dict[str, list[torch.Tensor]]]:
    """Every case as the adapters package makes it, and what it then computes."""
    folder = tmp_path_factory.mktemp("made")
    cases = {name: {**case, "base": bases[case["arch"]]} for name, case in CASES.items()}
    return folder, peer("make", folder, cases)


@pytest.fixture(scope="session")
def back(bases, made, tmp_path_factory) -> dict[str, list[torch.Tensor]]:
    """What the adapters package computes with every case read and written again by us."""
    folder = tmp_path_factory.mktemp("back")
    for name, case in CASES.items():
        base = inlay.Host(bases[case["arch"]]).base
        adapterhub.write(adapterhub.read(made[0] / name, base), base, folder / name)
    cases = {
        name: {"base": bases[case["arch"]], "safe": i % 2 == 0, "hidden": not case.get("head")}
        for i, (name, case) in enumerate(CASES.items())
    }
    return peer("load", folder, cases)


@pytest.mark.peers
@pytest.mark.parametrize("name", CASES)
def test_an_adapter_of_theirs_gives_the_same_outputs_here(bases, made, name):
    host = inlay.Host(bases[CASES[name]["arch"]])
    folder, theirs = made
    assert adapterhub.recognises(folder / name)
    host.load(adapterhub.read(folder / name, host.base), "a")
    assert_same(ours(host, "a"), theirs[name], name)
    bare = ours(host, None)
    states = host.hidden(inlay.Batch.of(ROWS), ["a"] * len(ROWS)).rows()
    moved = max((a - b).abs().max().item() for a, b in zip(states, bare, strict=True))
    assert moved > 0.05, "the adapter must do something, or equality says nothing"


@pytest.mark.peers
@pytest.mark.parametrize("name", CASES)
def test_and_written_again_the_same_outputs_there(made, back, name):
    assert_same(back[name], made[1][name], name)


OURS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("bert", "houlsby:size=5,norms=false", {}),
    "shared by sublayers": ("roberta", "houlsby:size=7,share=sublayers", {"labels": 3}),
    "shared by layers": ("bert", "houlsby:size=4,share=2,where=ffn", {"labels": 3, "head": "tanh2"}),
    "pfeiffer": ("bert", "houlsby:size=6,where=ffn,normed=true,activation=relu", {"labels": 3, "pool": "pooler"}),
    "pfeiffer, shared": ("roberta", "houlsby:size=16,normed=true,share=sublayers,layers=0+2", {}),
    "parallel": ("bert", "houlsby:size=20,parallel=true,norms=false,activation=mish,layers=top2", {}),
    "identity": ("bert", "houlsby:size=3,norms=false,activation=identity,where=attn", {}),
    "lora": ("roberta", "lora:rank=3,alpha=5.5,sites=attn.q+attn.k+ffn.in,layers=1-2", {"labels": 3, "head": "mlp"}),
    "lora of the outputs": ("bert", "lora:sites=ffn.out", {"labels": 4, "pool": "tokens", "head": "relu2"}),
    "questions": ("bert", "lora", {"labels": ["start", "end"], "task": "qa"}),
    "labels": ("bert", "lora", {"labels": 3, "task": "multilabel"}),
    "a name of torch": ("bert", "lora", {"labels": 3}),
}


@pytest.fixture(scope="session")
def exported(bases, tmp_path_factory) -> tuple[dict[str, Any], dict[str, list[torch.Tensor]]]:
    """Ours, in the adapters package."""
    folder = tmp_path_factory.mktemp("exported")
    hosts = {}
    for name, (arch, spec, how) in OURS.items():
        own = "keys" if name == "a name of torch" else "a.b c"
        host = hosts[name] = inlay.Host(bases[arch])
        host.add(own, spec, **how)
        tiny.shake(host, own)
        adapterhub.write(host.adapter(own), host.base, folder / name)
    cases = {name: {"base": bases[arch], "safe": i % 2 == 0} for i, (name, (arch, _, _)) in enumerate(OURS.items())}
    return hosts, peer("load", folder, cases)


@pytest.mark.peers
@pytest.mark.parametrize("name", OURS)
def test_an_adapter_of_ours_gives_the_same_outputs_there(exported, name):
    hosts, theirs = exported
    assert_same(ours(hosts[name], hosts[name].names[0]), theirs[name], name)


@pytest.mark.peers
def test_what_old_files_mean_is_what_the_package_takes_them_for(bases, tmp_path):
    good(tmp_path / "scale", "lora:rank=3,alpha=7", "bert", version="adapters.1.0.1")
    good(tmp_path / "names", "houlsby:size=4,where=ffn,normed=true", "bert")
    good(tmp_path / "gelu", "houlsby:size=4,norms=false", "bert", version=None, config={"non_linearity": "gelu_orig"})
    for kind in (adapterhub.WEIGHTS, adapterhub.PICKLED):
        old = read_any(tmp_path / "names" / kind)
        old = {key.replace(".adapters.", ".layer_text_task_adapters."): t for key, t in old.items()}
        write_any(tmp_path / "names" / kind, old)
    names = ["scale", "names", "gelu"]
    theirs = peer("load", tmp_path, {name: {"base": bases["bert"], "safe": name != "names"} for name in names})
    for name in names:
        host = inlay.Host(bases["bert"])
        host.load(adapterhub.read(tmp_path / name, host.base), "a")
        assert_same(ours(host, "a"), theirs[name], name)


# files alone


def read_any(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def write_any(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    tensors = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)


def change(path: Path, options: dict[str, Any], /, **top: Any) -> None:
    """Other settings; None removes what is at the top."""
    settings = json.loads(path.read_text())
    inner = settings["config"]
    settings = {key: value for key, value in {**settings, **top}.items() if not (key in top and value is None)}
    if options and inner is not None:
        settings["config"] = {**inner, **options}
    path.write_text(json.dumps(settings))


def good(folder: Path, spec: str, arch: str = "bert", config: dict[str, Any] | None = None, **top: Any) -> Path:
    """A directory as the adapters package would have written it, with other settings."""
    host = inlay.Host(tiny.model(arch))
    host.add("case", spec, labels=3)
    tiny.shake(host, "case")
    adapterhub.write(host.adapter("case"), host.base, folder)
    change(folder / adapterhub.CONFIG, config or {}, **top)
    return folder


PLAIN = "houlsby:size=4,norms=false"


@pytest.fixture
def base() -> Any:
    return inlay.Host(tiny.model("bert")).base


@pytest.mark.thin(12)
@pytest.mark.parametrize(
    ("spec", "config", "top", "reason"),
    [
        (PLAIN, {"inv_adapter": "nice"}, {}, "invertible adapters change the embeddings"),
        (PLAIN, {"invertible_adapter": {"block_type": "nice"}}, {}, "invertible adapters"),
        (PLAIN, {"phm_layer": True}, {}, "Compacter"),
        (PLAIN, {"ln_before": True}, {}, "a norm of its own in front"),
        (PLAIN, {"ln_after": True}, {}, "a norm of its own behind"),
        (PLAIN, {"use_gating": True}, {}, "gate looks at the whole text"),
        (PLAIN, {"original_ln_after": False}, {}, "is not a place that Inlay has"),
        (PLAIN, {"original_ln_before": True, "residual_before_ln": False}, {}, "is not a place that Inlay has"),
        (PLAIN, {"original_ln_before": True, "residual_before_ln": "post_add"}, {}, "is not a place that Inlay has"),
        (PLAIN, {"non_linearity": "gelu_new"}, {}, "Inlay has no non_linearity=gelu_new"),
        (PLAIN, {}, {"version": None}, "Inlay has no non_linearity=gelu_new"),
        (PLAIN, {"scaling": "odd"}, {}, "scaling is 'odd', not a number"),
        (PLAIN, {"scaling": "learned"}, {}, "lacks encoder.layer.0.attention.output.adapters.case.scaling"),
        (PLAIN, {"mh_adapter": False, "output_adapter": False}, {}, "it would adapt nothing"),
        (PLAIN, {"mh_adapter": False}, {}, "no place in an adapter"),
        (PLAIN, {"leave_out": [0, 1, 2]}, {}, "leave_out names every layer"),
        (PLAIN, {"leave_out": "all"}, {}, "not a list of layers"),
        (PLAIN, {"leave_out": [0]}, {}, "no place in an adapter"),
        (PLAIN, {"something_new": 1}, {}, "'something_new' is not known"),
        (PLAIN, {"architecture": "prefix_tuning"}, {}, "Inlay has no prefix_tuning adapters"),
        (PLAIN, {"architecture": "union"}, {}, "Inlay has no union adapters"),
        (PLAIN, {}, {"model_type": "roberta"}, "model_type='roberta'"),
        (PLAIN, {}, {"hidden_size": 768}, "hidden_size=768"),
        (PLAIN, {}, {"name": "../../other"}, "lacks encoder.layer.0.attention.output.adapters...?/...?/other"),
        (PLAIN, {}, {"name": 3}, "name is 3"),
        (PLAIN, {}, {"config": "pfeiffer"}, "config is 'pfeiffer'"),
        ("lora", {"composition_mode": "scale", "r": 1}, {}, r"multiplies, as \(IA\)3"),
        ("lora", {"use_gating": True}, {}, "gate looks at the whole text"),
        ("lora", {"use_dora": True}, {}, "DoRA"),
        ("lora", {"vera_d": 0.1}, {}, "VeRA"),
        ("lora", {"r": 4}, {}, "has rank 8, but adapter_config.json says 4"),
        ("lora", {"r": 0}, {}, "r=0 is not valid"),
        ("lora", {"alpha": "x"}, {}, "alpha is 'x', not a number"),
        ("lora", {"architecture": None}, {}, "not known|would adapt nothing"),
    ],
)
def test_settings_that_cannot_be_represented_are_refused(base, tmp_path, spec, config, top, reason):
    folder = good(tmp_path / "a", spec)
    adapterhub.read(folder, base)  # it is the change that is refused
    change(folder / adapterhub.CONFIG, config, **top)
    with pytest.raises(AdapterError, match=reason):
        adapterhub.read(folder, base)


@pytest.mark.parametrize(
    ("config", "top", "reason"),
    [
        ({"head_type": "multiple_choice"}, {}, "no head of the type 'multiple_choice'"),
        ({"head_type": ["tagging"]}, {}, "no head of the type"),
        ({"layers": 3}, {}, "layers=3 cannot be represented"),
        ({"layers": 2}, {}, r"lacks heads\.case\.4\.weight"),
        ({"layers": 2, "activation_function": None}, {}, "activation_function=None is not one of"),
        ({"num_labels": 4}, {}, r"is \(3, 16\), but \(4, 16\)"),
        ({"num_labels": "many"}, {}, "num_labels='many'"),
        ({"bias": False}, {}, "no place in an adapter"),
        ({"use_gate": True}, {}, "'use_gate' is not known"),
        ({}, {"config": 7}, "config is 7"),
        ({}, {"name": "other"}, r"lacks heads\.other\.1\.weight"),
    ],
)
def test_heads_that_cannot_be_represented_are_refused(base, tmp_path, config, top, reason):
    folder = good(tmp_path, PLAIN)
    change(folder / adapterhub.HEAD_CONFIG, config, **top)
    with pytest.raises(AdapterError, match=reason):
        adapterhub.read(folder, base)


def test_a_head_of_a_class_that_inlay_has_not_is_refused(base, tmp_path):
    folder = good(tmp_path, PLAIN)
    settings = json.loads((folder / adapterhub.HEAD_CONFIG).read_text())
    for name, reason in (
        ("BertForMultipleChoice", "no head of BertForMultipleChoice"),
        ("BertForTokenClassification", "is not a head for"),
    ):
        (folder / adapterhub.HEAD_CONFIG).write_text(json.dumps({**settings, "config": None, "model_class": name}))
        with pytest.raises(AdapterError, match=reason):
            adapterhub.read(folder, base)


def test_a_head_without_its_settings_or_weights_is_not_lost_silently(base, tmp_path):
    folder = good(tmp_path / "a", PLAIN)
    (folder / adapterhub.HEAD_CONFIG).unlink()
    with pytest.raises(AdapterError, match="cannot read"):
        adapterhub.read(folder, base)
    folder = good(tmp_path / "b", PLAIN)
    (folder / adapterhub.HEAD).unlink()
    (folder / adapterhub.PICKLED_HEAD).unlink()
    with pytest.raises(AdapterError, match="has neither"):
        adapterhub.read(folder, base)


@pytest.mark.thin(8)
@pytest.mark.parametrize("spec", [PLAIN, "houlsby:size=4,where=ffn,normed=true", "lora"])
@pytest.mark.parametrize("odd", [[], [1], {}, {"a": {}}, "", "x", 0, -1, 10**400, 1.5, True, None], ids=repr)
def test_odd_settings_never_end_in_anything_but_a_named_error(base, tmp_path, spec, odd):
    folder = good(tmp_path, spec)
    for file in (folder / adapterhub.CONFIG, folder / adapterhub.HEAD_CONFIG):
        whole = json.loads(file.read_text())
        variants = [{**whole, key: odd} for key in whole]
        variants += [{**whole, "config": {**whole["config"], key: odd}} for key in whole["config"]]
        for variant in variants:
            file.write_text(json.dumps(variant))
            adapterhub.recognises(folder)
            try:
                adapterhub.read(folder, base)
            except AdapterError:
                continue
        file.write_text(json.dumps(whole))
    adapterhub.read(folder, base)


def test_weights_that_do_not_fit_are_refused(base, tmp_path):
    folder = good(tmp_path, PLAIN)
    weights = read_any(folder / adapterhub.WEIGHTS)
    key = "bert.encoder.layer.1.output.adapters.case.adapter_down.0.weight"
    spoilt = {
        "not finite": {key: weights[key] * float("nan")},
        r"is \(4, 15\), but \(4, 16\)": {key: weights[key][:, :-1]},
        r"bias is \(4,\), but \(3,\)": {key: weights[key][:-1]},
        "is .*, but": {key: weights[key][0]},
        "not plain floating-point": {key: weights[key].int()},
        "no place in an adapter": {"bert.encoder.layer.7.output.adapters.case.adapter_up.bias": torch.ones(16)},
        "holds something.else": {"something.else": torch.ones(2)},
    }
    for reason, changed in spoilt.items():
        write_any(folder / adapterhub.WEIGHTS, {**weights, **changed})
        with pytest.raises(AdapterError, match=reason):
            adapterhub.read(folder, base)
    write_any(folder / adapterhub.WEIGHTS, {name: t for name, t in weights.items() if name != key})
    with pytest.raises(AdapterError, match=r"lacks encoder\.layer\.1\.output"):
        adapterhub.read(folder, base)
    for file, name in ((adapterhub.WEIGHTS, "safetensors"), (adapterhub.HEAD, "safetensors")):
        content = (folder / file).read_bytes()
        write_any(folder / adapterhub.WEIGHTS, weights)
        (folder / file).write_bytes(content[:-7])
        with pytest.raises(AdapterError, match=f"is not a {name} file"):
            adapterhub.read(folder, base)


def test_a_pickle_runs_no_code(base, tmp_path):
    folder = good(tmp_path / "a", PLAIN)
    (folder / adapterhub.WEIGHTS).unlink()
    adapterhub.read(folder, base)
    torch.save({"a": Evil(tmp_path / "code ran")}, folder / adapterhub.PICKLED)
    with pytest.raises(AdapterError, match="without running code"):
        adapterhub.read(folder, base)
    assert not (tmp_path / "code ran").exists()


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_fusion_is_recognised_and_refused(base, tmp_path):
    (tmp_path / adapterhub.FUSION_CONFIG).write_text("{}")
    assert adapterhub.recognises(tmp_path)
    with pytest.raises(AdapterError, match="AdapterFusion"):
        adapterhub.read(tmp_path, base)


def test_folders_of_others_are_not_recognised(tmp_path):
    assert not adapterhub.recognises(tmp_path)
    (tmp_path / adapterhub.CONFIG).write_text('{"peft_type": "LORA"}')
    assert not adapterhub.recognises(tmp_path)
    assert peft.recognises(tmp_path)
    assert not peft.recognises(good(tmp_path / "a", PLAIN))
    assert adapterhub.recognises(tmp_path / "a")


@pytest.mark.parametrize(
    ("arch", "spec", "how", "reason"),
    [
        ("bert", "houlsby:size=4", {}, "trained layers.0.attn.norm; train with norms=false"),
        ("bert", "houlsby:size=4,norms=false,depth=2", {}, "depth cannot be written"),
        ("bert", "houlsby:size=4,norms=false,inner_norm=true", {}, "inner_norm cannot be written"),
        ("bert", "adapterbias", {}, "AdapterHub has no adapterbias adapters"),
        ("bert", "lora:sites=attn.out", {}, "AdapterHub has no LoRA at attn.out"),
        ("bert", "lora", {"labels": 2, "pool": "mean"}, "not pool=mean"),
        ("albert", PLAIN, {}, "exchange one of them"),
        ("llama", "lora", {}, "is llama"),
    ],
)
def test_what_adapterhub_has_not_is_refused_and_nothing_is_written(arch, spec, how, reason, tmp_path):
    host = inlay.Host(tiny.model(arch))
    host.add("a", spec, **how)
    tiny.shake(host, "a")
    with pytest.raises(AdapterError, match=reason):
        adapterhub.write(host.adapter("a"), host.base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_norms_that_have_not_moved_are_no_obstacle(base, tmp_path):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", "houlsby:size=4")
    adapterhub.write(host.adapter("a"), host.base, tmp_path)
    assert adapterhub.read(tmp_path, base).method == "houlsby:size=4,norms=false"


def test_albert_reads_the_other_way_round(tmp_path):
    base = inlay.Host(tiny.model("albert")).base
    folder = good(tmp_path, "houlsby:size=4,where=attn,norms=false", "albert")
    assert json.loads((folder / adapterhub.CONFIG).read_text())["config"]["is_parallel"] is True
    assert "parallel" not in adapterhub.read(folder, base).method
    change(folder / adapterhub.CONFIG, {"output_adapter": True})
    with pytest.raises(AdapterError, match="exchange one of them"):
        adapterhub.read(folder, base)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 11, 13, 16, 17, 24, 100])
@pytest.mark.parametrize("hidden", [16, 24, 384, 768, 1000])
def test_the_reduction_factor_gives_the_size_again(hidden, size):
    assert int(hidden // _reduction(hidden, size)) == size


def test_labels_and_tasks_travel(base, tmp_path):
    host = inlay.Host(tiny.model("bert"))
    tasks = {"classification": ["no", "yes"], "multilabel": ["x", "y", "z"], "regression": ["value"]}
    tasks |= {"tagging": ["O", "B-a", "I-a"], "qa": ["start", "end"]}
    for task, labels in tasks.items():
        host.add(task, "lora", labels=labels, task=task)
        adapterhub.write(host.adapter(task), host.base, tmp_path / task)
        back = adapterhub.read(tmp_path / task, base)
        assert (back.name, back.task, back.labels) == (task, task, tuple(labels))
        assert back.pool == host.adapter(task).pool
