"""A hub on this machine: the few requests that huggingface_hub makes to create, commit, look at and download a repo.

Every request is remembered. Large files go the way of the real hub (LFS: a batch request, an upload, a pointer in the
commit); `HF_HUB_DISABLE_XET` must be on, since its other protocol is not spoken here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "x" * 34


@dataclass
class Repo:
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    head: str = ""

    def commit(self, files: dict[str, bytes]) -> str:
        text = json.dumps([self.head, *((n, hashlib.sha256(c).hexdigest()) for n, c in sorted(files.items()))])
        self.head = hashlib.sha1(text.encode()).hexdigest()
        self.commits[self.head] = files
        return self.head


class FakeHub:
    """A server in a thread of its own, at `url`."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.status = 0
        """Answer everything with this status, if it is not 0."""
        hub = self

        class Handler(_Handler):
            state = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def add(self, name: str, files: dict[str, bytes], private: bool = False) -> str:
        repo = self.repos.setdefault(name, Repo(private))
        return repo.commit(files)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _answer(self) -> None:
        self.body = self._read()
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append(f"{self.command} {path}")
        if self.state.status:
            return self._send(self.state.status, {"error": "no"})
        for pattern, act in self._ROUTES:
            match = re.fullmatch(pattern, path)
            if match:
                return getattr(self, act)(*match.groups())
        return self._send(404, {"error": "no such path"})

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    _ROUTES = (
        (r"/api/repos/create", "_create"),
        (r"/api/validate-yaml", "_validate"),
        (r"/api/models/([\w.-]+/[\w.-]+)/preupload/(.+)", "_preupload"),
        (r"/api/models/([\w.-]+/[\w.-]+)/commit/(.+)", "_commit"),
        (r"/api/models/([\w.-]+/[\w.-]+)/revision/(.+)", "_info"),
        (r"/api/models/([\w.-]+/[\w.-]+)", "_info"),
        (r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", "_batch"),
        (r"/lfs/([0-9a-f]{64})", "_object"),
        (r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", "_resolve"),
    )

    def _send(self, status: int, answer: Any = b"", **headers: str) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _may(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repo(self, name: str) -> Repo | None:
        repo = self.state.repos.get(name)
        if repo is None or (repo.private and not self._may()):
            self._send(404 if self._may() else 401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        return repo

    def _files(self, repo: Repo, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        commit = repo.head if revision in (None, "main") else str(revision)
        if commit not in repo.commits:
            self._send(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return None
        return commit, repo.commits[commit]

    def _create(self) -> None:
        if not self._may():
            return self._send(401, {"error": "Invalid username or password."})
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        there = name in self.state.repos
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        if not there:
            self.state.add(name, {".gitattributes": b"*.safetensors filter=lfs"}, private)
        return self._send(409 if there else 200, {"url": f"{self.state.url}/{name}"})

    def _validate(self) -> None:
        text = json.loads(self.body)["content"]
        bad = not text.startswith("---\n")
        self._send(400 if bad else 200, {"errors": [{"message": "no front matter"}] * bad, "warnings": []})

    def _preupload(self, name: str, revision: str) -> None:
        if not self._may():
            return self._send(403, {"error": "forbidden"})
        files = [file["path"] for file in json.loads(self.body)["files"]]
        modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in files}
        return self._send(
            200, {"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]}
        )

    def _batch(self, name: str) -> None:
        objects = []
        for one in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.state.url}/lfs/{one['oid']}"}}
            objects.append({**one, "actions": upload})
        self._send(200, {"objects": objects, "transfer": "basic"})

    def _object(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.state.objects[oid] = self.body
        self._send(200)

    def _commit(self, name: str, revision: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        files = dict(repo.commits[repo.head])
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.state.objects[value["oid"]]
        commit = repo.commit(files)
        self._send(200, {"commitUrl": f"{self.state.url}/{name}/commit/{commit}", "commitOid": commit})

    def _info(self, name: str, revision: str | None = None) -> None:
        repo = self._repo(name)
        found = self._files(repo, revision) if repo else None
        if repo is None or found is None:
            return
        commit, files = found
        siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
        self._send(200, {"id": name, "sha": commit, "private": repo.private, "siblings": siblings, "tags": []})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._repo(name)
        found = self._files(repo, revision) if repo else None
        if found is None:
            return None
        commit, files = found
        if path not in files:
            return self._send(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        etag = hashlib.sha256(files[path]).hexdigest()
        return self._send(200, files[path], ETag=f'"{etag}"', X_Repo_Commit=commit)
