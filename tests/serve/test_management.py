"""Changing what is served without a key: over a Unix socket that only its owner can open."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from serve.place import FakeEngine, fake, until

from inlay import Client
from inlay.client import ServiceError
from inlay.errors import InlayError
from inlay.serve.app import build
from inlay.serve.keys import Keys
from inlay.serve.process import take_port, taken_socket, url_of
from inlay.serve.server import Server


def test_a_unix_socket_manages_and_a_port_does_not(tmp_path: Path):
    path = tmp_path / "inlay.sock"
    place = fake(FakeEngine(), keys=Keys(socket=str(path)))
    taken: list[Any] = []
    place.service.catalogue.take = taken.append  # type: ignore[method-assign]
    with take_port("127.0.0.1", 0) as port, taken_socket(path) as unix:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        server = Server(build(place.service), place.service.limits)
        thread = threading.Thread(target=server.run, args=([port, *unix],))
        thread.start()
        until(lambda: server.started)
        try:
            with (
                Client(url_of(port)) as client,
                pytest.raises(ServiceError, match="--management-socket PATH") as caught,
            ):
                client.withdraw("sms")
            assert caught.value.status == 403
            with Client("http://localhost", socket=path) as client:
                client.withdraw("sms")
                assert client.ask("sms", "a film")["label"] == "ham"
        finally:
            server.end()
            thread.join(30)
    assert taken == ["sms"]
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_replaced_and_anything_else_is_not(tmp_path: Path):
    path = tmp_path / "inlay.sock"
    with taken_socket(path) as (first,):
        first.listen()
        with pytest.raises(InlayError, match="it exists already"), taken_socket(path):
            pass
        first.close()
        with taken_socket(path):  # nobody answers there
            pass
    path.write_text("mine")
    with pytest.raises(InlayError, match="--management-socket"), taken_socket(path):
        pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize("host", ["x..y", "a" * 64 + ".org"])
def test_a_host_that_is_none_is_refused(host: str):
    with pytest.raises(InlayError, match="--host"):
        take_port(host, 0)
