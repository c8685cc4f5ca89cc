"""Who may do what: keys and scopes, and an open service, whose tasks nobody may change by accident."""

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
        ("web read k", "unknown scope 'read'. Valid: predict, manage"),
        ("web predict, k", "unknown scope ''"),
        ("web predict sha256:12", "64 hexadecimal digits"),
        ("a predict k\na manage l", ":2: the name 'a' is used twice"),
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


def test_a_key_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_text("# keys\nweb predict k", encoding="utf-8-sig")
    assert [key.name for key in read_keys(path).keys or ()] == ["web"]


def test_a_key_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(InlayError, match="cannot be read: No such file"):
        read_keys(tmp_path / "none")


# --- without keys -------------------------------------------------------------------------------------------------

NEAR = [
    {},
    {"base_url": "http://127.0.0.1:8000"},
    {"headers": {"X-Forwarded-For": "127.0.0.1"}},
    {"host": "10.0.0.9"},
    {"base_url": "http://evil.example:8000", "headers": {"Origin": "http://evil.example:8000"}},
]


@pytest.mark.parametrize("how", NEAR)
def test_without_keys_nobody_manages_wherever_they_come_from(how: dict[str, Any]):
    place = service()
    for method in ("PUT", "DELETE"):
        refused = ask(place, method, "/v1/tasks/sms", **dict(how))
        assert refused.status_code == 403
        for way in ("--key-file", "--management-socket PATH", "--open-management"):
            assert way in refused.json()["error"]["message"]
    assert ask(place, "POST", "/v1/predict", **dict(how)).status_code == 200


def test_an_operator_can_open_management_but_not_to_web_pages():
    place = service(Keys(open_management=True))
    assert ask(place, "PUT", "/v1/tasks/sms").status_code == 200
    assert ask(place, "PUT", "/v1/tasks/sms", host="10.0.0.9").status_code == 200
    for origin in ("http://evil.example", "http://localhost:8000", "null"):
        refused = ask(place, "PUT", "/v1/tasks/sms", headers={"Origin": origin})
        assert (refused.status_code, "web page" in refused.text) == (403, True)


def test_a_unix_socket_is_open_to_management():
    place = service(Keys(socket="/run/inlay.sock"))

    async def over(server: Any) -> int:
        scope = {
            "type": "http", "method": "PUT", "path": "/v1/tasks/sms", "raw_path": b"", "query_string": b"",
            "root_path": "", "scheme": "http", "http_version": "1.1", "headers": [(b"host", b"x")],
            "client": None, "server": server,
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await place.app(scope, receive, send)
        return int(sent[0]["status"])

    assert asyncio.run(over(("/run/inlay.sock", None))) == 200
    assert [asyncio.run(over(one)) for one in (("/run/other.sock", None), ("127.0.0.1", 8000), None)] == [403] * 3
