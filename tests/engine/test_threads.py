"""A host shared by threads answers as one thread would."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

import tiny
import torch

import inlay
from inlay.engine.alpha import alphas
from inlay.engine.watch import layer_states

TEXTS = ["a good film", "bad soup and late parcel", "ana meets bob in lima", "the refund never came"]
SPECS = {"a": "houlsby:size=4", "b": "houlsby:size=3", "c": "bitfit", "d": "finetune:top=1", "e": "adapterbias"}


def host_of_all() -> inlay.Host:
    host = tiny.text_host("bert")
    for name, spec in SPECS.items():
        host.add(name, spec, labels=["x", "y"])
        tiny.shake(host, name, ord(name))
    return host


def at_once(*work: Callable[[], None]) -> list[Exception]:
    """Run these in a thread each, begun together; what they raised."""
    raised: list[Exception] = []
    begin = threading.Barrier(len(work))

    def run(do: Callable[[], None]) -> None:
        begin.wait()
        try:
            do()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(do,)) for do in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_names_may_be_asked_for_while_another_thread_loads():
    host = host_of_all()
    record = host.loaded("a")
    host._loaded |= {f"more{i}": record for i in range(1000)}

    done = threading.Event()

    def changes() -> None:
        while not done.is_set():
            host._loaded["new"] = record
            time.sleep(0)  # lets the other thread see it
            del host._loaded["new"]

    def asks() -> None:
        try:
            for _ in range(300):
                assert len(host.names) in (1005, 1006)
        finally:
            done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert at_once(changes, asks) == []
    finally:
        sys.setswitchinterval(interval)


def test_answers_of_threads_are_those_of_one():
    host = host_of_all()
    asks = [(name, text) for name in SPECS for text in TEXTS[:2]]
    wanted = {ask: host.predict([ask]) for ask in asks}
    states = layer_states(host, tiny.batch(2), ["a", "c"])
    shifts = alphas(host, tiny.batch(2), ["e", "a"])
    wrong: list[object] = []

    def predicts(some: Sequence[tuple[str, str]]) -> Callable[[], None]:
        def do() -> None:
            for _ in range(2):
                wrong.extend(ask for ask in some if host.predict([ask]) != wanted[ask])

        return do

    def looks() -> None:
        for _ in range(6):
            found = layer_states(host, tiny.batch(2), ["a", "c"])
            wrong.extend(1 for one, other in zip(found, states, strict=True) if not torch.equal(one, other))
            heard = alphas(host, tiny.batch(2), ["e", "a"])
            wrong.extend(
                1 for one, other in zip(heard, shifts, strict=True) if one is not None and (one != other).any()
            )

    assert at_once(predicts(asks[::2]), predicts(asks[1::2]), looks) == []
    assert wrong == []


def test_adapters_come_and_go_while_others_answer():
    host = host_of_all()
    wanted, other = host.predict([("a", TEXTS[0])]), host.adapter("b")
    wrong: list[int] = []

    def moves() -> None:
        for i in range(20):
            host.load(other, f"b{i}")
            if i >= 3:
                host.unload(f"b{i - 3}")

    def asks() -> None:
        wrong.extend(1 for _ in range(20) if host.predict([("a", TEXTS[0])]) != wanted)

    assert at_once(moves, asks, asks) == []
    assert wrong == []
