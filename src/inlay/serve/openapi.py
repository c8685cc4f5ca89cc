"""The OpenAPI document: errors, and the bodies that the application reads by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from inlay.serve import bodies

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
KEYED: dict[str, Any] = {"security": [{"bearer": []}, {"header": []}]}
"""Operations that take a key."""
Responses = dict[int | str, dict[str, Any]]
_FAILURES = {
    400: "The body is not JSON.",
    401: "No valid key was sent.",
    403: "The key lacks the scope, or the service has no keys and does not allow this.",
    404: "There is no such task.",
    408: "The body arrived too slowly.",
    409: "The stored adapter is damaged.",
    413: "The call is too large.",
    415: "The content type is not JSON.",
    422: "The body is JSON, but not of the expected form.",
    429: "The queue is full; Retry-After says when to try again.",
    503: "The service is starting up, shutting down, or has failed.",
    504: "The deadline passed.",
}


def failure_responses(*statuses: int) -> Responses:
    """What these statuses mean; all have the same body."""
    return {status: {"model": bodies.Failure, "description": _FAILURES[status]} for status in statuses}


def text_response(description: str, kind: str) -> Responses:
    """An answer that is not JSON."""
    return {200: {"description": description, "content": {kind: {"schema": {"type": "string"}}}}}


def request_body(*models: str, required: bool = True) -> dict[str, Any]:
    """A body that is read by hand, in one of these forms."""
    forms: list[dict[str, Any]] = [{"$ref": f"#/components/schemas/{model}"} for model in models]
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def complete_openapi(app: FastAPI, is_open: bool) -> None:
    """Add the bodies that are read by hand, and keys, to the OpenAPI document.

    Args:
        is_open: whether most of it can be used without a key.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        document["components"]["schemas"] |= bodies.schemas()
        document["components"]["securitySchemes"] = _SCHEMES
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            if "security" in operation:
                operation["security"] = KEYED["security"] + ([{}] if is_open else [])
        return document

    app.openapi = openapi  # type: ignore[method-assign]
