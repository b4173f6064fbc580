"""The OpenAPI document, made of the routes and of the models that check requests."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from istar_envs import __version__
from istar_envs.server.problems import CONTENT_TYPE
from istar_envs.wire.messages import MAX_IDS, MAX_START, Health, Problem

if TYPE_CHECKING:
    from istar_envs.server.api import Route

_ABOUT: Final = (
    "One API for every environment of istar: open a session, reset and step it by numbered calls, close it. "
    "A call that is repeated with its number is not carried out again."
)
_ALWAYS: Final = (400, 401, 403, 429, 500, 503)
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "session": {"type": "string"},
    "env": {"type": "string", "description": "Id of the environment; its slash may be written as it is."},
    "start": {"type": "integer", "minimum": 0, "maximum": MAX_START, "default": 0},
    "limit": {"type": "integer", "minimum": 0, "maximum": MAX_IDS, "default": MAX_IDS},
}


def openapi_document(routes: "Sequence[Route]", *, with_token: bool) -> dict[str, Any]:
    """Return the document.

    Args:
        routes: Operations of the API.
        with_token: Whether a bearer token is asked for.
    """
    models: set[type[BaseModel]] = {Problem, Health}
    models.update(kind for route in routes for kind in (route.request, route.answer) if kind is not None)
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    for path, codes in (("/healthz", (200,)), ("/readyz", (200, 503))):
        answers = {str(code): _content("Health", HTTPStatus(code).phrase) for code in codes}
        paths[path] = {"get": {"summary": "Say whether the server works.", "responses": answers}}
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "istar environments", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": components,
    }
    if with_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _operation(route: "Route") -> dict[str, Any]:
    good = HTTPStatus(route.status).phrase
    name = route.answer.__name__ if route.answer else None
    answers = {str(route.status): _content(name, good) if name else {"description": good}}
    for code in sorted({*_ALWAYS, *route.refusals}):
        answers[str(code)] = _content("Problem", HTTPStatus(code).phrase, CONTENT_TYPE)
    operation: dict[str, Any] = {
        "summary": (route.view.__doc__ or "").strip(),
        "operationId": route.view.__name__,
        "responses": answers,
    }
    parameters = [_parameter(name, "path") for name in re.findall(r"{(\w+)}", route.path)]
    parameters += [_parameter(name, "query") for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.request:
        operation["requestBody"] = {"required": True, **_content(route.request.__name__)}
    return operation


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": _PARAMETERS[name]}


def _content(model: str, description: str | None = None, kind: str = "application/json") -> dict[str, Any]:
    content = {"content": {kind: {"schema": {"$ref": f"#/components/schemas/{model}"}}}}
    return content if description is None else {"description": description, **content}
