"""The hub: a repo holds an adapter as an export does: `adapter.safetensors`, `card.json`, `README.md`.

Nothing else is ever downloaded, and nothing too large: sizes are asked for first, and a branch is pinned to its commit
before the first file. A download is only bytes; `interop.exported` checks them like a library's own files. The token
comes from the argument, `HF_TOKEN`, or `hf auth login`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.errors import LibraryError
from inlay.interop.exported import CARD, README, WEIGHTS
from inlay.library import cards

LIMIT = 4 << 30
"""Bytes of an adapter; a full fine-tuning of a large encoder has 1.4 GB."""
_OURS = frozenset((WEIGHTS, CARD, README, ".gitattributes"))


@dataclass(frozen=True)
class Place:
    """Files in a repo at one commit."""

    repo: str
    commit: str
    url: str


def push(
    files: Mapping[str, bytes],
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    message: str = "An adapter",
) -> Place:
    """Write the files of an export into a repo, in one commit; a repo that does not exist is made.

    Args:
        private: whether a new repo is private. If True, a public repo that exists is refused.
        revision: the branch; `main` by default.
    """
    from huggingface_hub import CommitOperationAdd

    api = _api(token)
    with _explaining_errors(repo, revision, "write to"):
        api.create_repo(repo, private=private or None, exist_ok=True)
        info = api.model_info(repo)
        if private and not info.private:
            raise LibraryError(f"{repo} already exists and is public; make it private on the hub, or choose another")
        _refuse_other_content(repo, {file.rfilename for file in info.siblings or ()})
        additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=data) for name, data in files.items()]
        commit = api.create_commit(repo, additions, commit_message=message, revision=revision)
    return Place(repo, str(commit.oid), f"{api.endpoint}/{repo}")


def pull(
    repo: str, *, revision: str | None = None, token: str | None = None, limit: int = LIMIT
) -> tuple[dict[str, bytes], Place]:
    """The files of an export in a repo at one commit, unchecked; and which commit that is.

    Args:
        revision: a branch, a tag or a commit; `main` by default.
        limit: the most bytes of the adapter.
    """
    api = _api(token)
    with _explaining_errors(repo, revision, "read"):
        info = api.model_info(repo, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        for name, most in ((CARD, cards.LIMIT), (WEIGHTS, limit)):
            _refuse_size(repo, name, sizes, most)
        with tempfile.TemporaryDirectory(prefix="inlay-pull-") as folder:
            files = {name: _download(api, repo, name, info.sha, folder) for name in (CARD, WEIGHTS)}
    return files, Place(repo, str(info.sha), f"{api.endpoint}/{repo}")


def _api(token: str | None) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token, library_name="inlay")


def _download(api: Any, repo: str, name: str, commit: str, folder: str) -> bytes:
    return Path(api.hf_hub_download(repo, name, revision=commit, local_dir=folder)).read_bytes()


def _refuse_size(repo: str, name: str, sizes: Mapping[str, int], most: int) -> None:
    if name not in sizes:
        raise LibraryError(f"{repo} holds no adapter of Inlay's: there is no {name} in it")
    if sizes[name] > most:
        raise LibraryError(
            f"{repo}: {name} has {sizes[name]:,} bytes, more than the {most:,} that are downloaded; "
            "if that is right, download it yourself and import the folder"
        )


def _refuse_other_content(repo: str, names: set[str]) -> None:
    others = sorted(names - _OURS)
    if others and CARD not in names:
        raise LibraryError(f"{repo} holds something else, for example {others[0]}; choose another repo")


@contextmanager
def _explaining_errors(repo: str, revision: str | None, action: str) -> Iterator[None]:
    """Turn every failure of the hub into a line that says what to do."""
    from huggingface_hub import errors

    login = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise LibraryError(f"{repo} is gated: ask for access on its page, then {login}") from None
    except errors.RepositoryNotFoundError:
        raise LibraryError(
            f"there is no repo {repo!r} on the hub that you may {action}; {login} if it is private"
        ) from None
    except errors.RevisionNotFoundError:
        raise LibraryError(f"{repo} has no revision {revision!r}") from None
    except errors.HFValidationError:
        raise LibraryError(f"{repo!r} is not the name of a repo: expected owner/name") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise LibraryError(f"you may not {action} {repo}: {login}") from None
        raise LibraryError(f"the hub cannot {action} {repo}: {_first_lines(error)}") from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise LibraryError(f"the hub cannot be reached: {_first_lines(error)}") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise LibraryError(f"cannot {action} {repo}: {_first_lines(error)}") from None


def _first_lines(error: BaseException) -> str:
    """The first line of an error, and of what caused it."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    cause = "" if error.__cause__ is None else _first_lines(error.__cause__)
    return line if cause in line else f"{line} {cause}"
