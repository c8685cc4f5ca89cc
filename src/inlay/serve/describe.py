"""The OpenAPI document: what can go wrong, and the bodies that the application reads by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from inlay.serve import bodies

Responses = dict[int | str, dict[str, Any]]
_FAILURES = {
    400: "The body is not JSON.",
    401: "A valid key is needed.",
    403: "The key is not for this.",
    404: "There is no such task.",
    408: "The body came too slowly.",
    409: "What is stored is damaged.",
    413: "The call is too large.",
    415: "The body is not said to be JSON.",
    422: "The body is not what it should be.",
    429: "The queue is full; Retry-After says when to come back.",
    503: "The service is not ready.",
    504: "The deadline passed.",
}


def failures(*statuses: int) -> Responses:
    """What these statuses mean; all have the same body."""
    return {status: {"model": bodies.Failure, "description": _FAILURES[status]} for status in statuses}


def text(description: str, kind: str) -> Responses:
    """An answer that is not JSON."""
    return {200: {"description": description, "content": {kind: {"schema": {"type": "string"}}}}}


def body(model: str, required: bool = True) -> dict[str, Any]:
    """A body that is read by hand."""
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> None:
    """Add the bodies that are read by hand to the OpenAPI document."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        document["components"]["schemas"] |= bodies.schemas()
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return document

    app.openapi = openapi  # type: ignore[method-assign]
