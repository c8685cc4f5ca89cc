"""When layers are compiled for a training: if asked, or if it pays; never where there are no kernels."""

from __future__ import annotations

import pytest
import tiny
from training import work

from inlay.runs.prepare import prepare
from inlay.training import compiling
from inlay.training.job import Job


def jobs(count: int, epochs: int) -> list[Job]:
    host = work.host()
    return [Job(i, f"run-{i}", prepare(work.run(seed=i, epochs=epochs), host)) for i in range(count)]


def test_long_trainings_pay_and_short_ones_do_not():
    host = work.host()
    assert not compiling.pays(host, jobs(1, 2), 1)
    assert compiling.pays(host, jobs(1, 10**6), 1)
    many = jobs(8, 20_000)
    assert compiling.pays(host, many, 1)
    assert not compiling.pays(host, many[:1], 1)


@pytest.mark.parametrize(("asked", "kernels", "epochs", "on"), [
    (None, True, 10**6, True),
    (None, True, 1, False),
    (None, False, 10**6, False),
    (False, True, 10**6, False),
])  # fmt: skip
def test_compiled_for_a_while(asked: bool | None, kernels: bool, epochs: int, on: bool):
    host = work.host()
    host.compile, host.forward.kernels = asked, kernels
    with compiling.compiled(host, jobs(1, epochs), 1):
        assert host.forward.compiled is on
    assert host.forward.compiled is False


def test_a_host_without_kernels_does_not_compile():
    import inlay

    host = inlay.Host(tiny.model("bert").cpu(), compile=True)
    assert host.forward.compiled == host.forward.kernels
