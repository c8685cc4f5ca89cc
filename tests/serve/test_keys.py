"""Who may do what: keys and scopes, and an open service that is managed from its own machine alone."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve.place import FakeEngine, Place, fake

from inlay.errors import InlayError
from inlay.serve import keys as module
from inlay.serve.keys import Keys, read_keys

ASKS, RULES = "k-that-asks", "k-that-rules"
FILE = f"""
# who may ask
web   predict         {ASKS}
ops   predict,manage  sha256:{hashlib.sha256(RULES.encode()).hexdigest()}
robot manage          k-of-a-robot
"""
BODY = {"requests": [{"task": "sms", "text": "a"}]}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys"
    path.write_text(FILE)
    return read_keys(path)


def service(keys: Keys | None = None) -> Place:
    place = fake(FakeEngine(), **({} if keys is None else {"keys": keys}))
    place.service.catalogue.put = lambda name, ref: place.service.engine.tasks()[0]  # type: ignore[method-assign]
    return place


def ask(place: Place, method: str, path: str, **how: Any) -> httpx.Response:
    async def go() -> httpx.Response:
        headers = how.pop("headers", None)
        async with place.client(**how) as client:
            return await client.request(method, path, headers=headers, json=BODY if method == "POST" else None)

    return asyncio.run(go())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("method", "path", "web", "robot"),
    [
        ("POST", "/v1/predict", 200, 403),
        ("POST", "/v1/predict/stream", 200, 403),
        ("GET", "/v1/tasks", 200, 200),
        ("PUT", "/v1/tasks/sms", 403, 200),
        ("GET", "/metrics", 200, 200),
    ],
)
def test_a_key_is_good_for_its_scopes(keys: Keys, method: str, path: str, web: int, robot: int):
    place = service(keys)
    for key, status in ((ASKS, web), ("k-of-a-robot", robot), (RULES, 200), ("wrong", 401), ("", 401)):
        assert ask(place, method, path, headers=bearer(key)).status_code == status, key
    assert ask(place, method, path, headers={"X-API-Key": RULES}).status_code == 200
    refused = ask(place, method, path)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    digest = hashlib.sha256(RULES.encode()).hexdigest()
    assert ask(place, method, path, headers=bearer(f"sha256:{digest}")).status_code == 401, "a digest is not its key"


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/openapi.json"])
def test_what_needs_no_key(keys: Keys, path: str):
    assert ask(service(keys), "GET", path).status_code == 200


def test_the_log_has_names_of_keys_and_never_a_key(keys: Keys):
    place = service(keys)
    ask(place, "POST", "/v1/predict", headers=bearer(ASKS))
    ask(place, "POST", "/v1/predict", headers=bearer("k-that-is-wrong"))
    assert [line.get("key") for line in place.lines()] == ["web", None]
    assert "k-that" not in place.log.getvalue()


def test_every_key_is_compared_in_constant_time(keys: Keys, monkeypatch: pytest.MonkeyPatch):
    compared, plain = [], hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return plain(one, other)

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    for key in (ASKS, RULES, "wrong", ""):
        compared.clear()
        ask(service(keys), "GET", "/v1/tasks", headers=bearer(key))
        assert len(compared) == 3
        assert {len(part) for pair in compared for part in pair} == {32}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no keys"),
        ("# nothing\n", "has no keys"),
        ("web predict", ":1: expected a name, scopes and a key"),
        ("web predict k k2", ":1: expected a name, scopes and a key"),
        ("web read k", "no scope 'read'; valid: predict, manage"),
        ("web predict, k", "no scope ''"),
        ("web predict sha256:12", "64 hexadecimal digits"),
        ("a predict k\na manage l", ":2: the name 'a' is there twice"),
        (b"a predict \xff", "cannot be read"),
    ],
)
def test_a_key_file_that_is_wrong_is_refused(tmp_path: Path, content: str | bytes, said: str):
    path = tmp_path / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InlayError) as caught:
        read_keys(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_key_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(InlayError, match="cannot be read: No such file"):
        read_keys(tmp_path / "none")


# --- without keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://localhost:8000", "http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost"]
)
def test_an_open_service_is_managed_from_its_machine(url: str):
    assert ask(service(), "PUT", "/v1/tasks/sms", base_url=url).status_code == 200


@pytest.mark.parametrize(
    "how",
    [
        {"host": "10.0.0.9"},
        {"host": "testclient"},
        {"base_url": "http://evil.example:8000"},
        {"base_url": "http://localhost.evil.example"},
        {"headers": {"X-Forwarded-For": "127.0.0.1"}},
        {"headers": {"Forwarded": "for=127.0.0.1"}},
        {"headers": {"Origin": "http://evil.example"}},
        {"headers": {"Origin": "http://localhost:9999"}},
    ],
)
def test_an_open_service_is_managed_from_nowhere_else(how: dict[str, Any]):
    place = service()
    assert ask(place, "PUT", "/v1/tasks/sms", **dict(how)).status_code == 403
    assert ask(place, "DELETE", "/v1/tasks/sms", **dict(how)).status_code == 403
    assert ask(place, "POST", "/v1/predict", **dict(how)).status_code == 200
