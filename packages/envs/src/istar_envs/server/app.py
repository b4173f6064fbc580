"""The Flask application of a server."""

import logging
from typing import Any, Final

from istar_envs.errors import EnvError, IstarError
from istar_envs.server.service import Service

try:
    from flask import Flask, Response, g, request
    from werkzeug.exceptions import HTTPException

    from istar_envs.server.api import Api, Route
    from istar_envs.server.guard import guard
    from istar_envs.server.openapi import openapi_document
    from istar_envs.server.problems import CONTENT_TYPE, Refusal, refusal_of
    from istar_envs.server.status import status_page
except ImportError as error:
    raise EnvError(
        'the server needs Flask, which is not installed. Run "pip install istar-envs[server]".'
    ) from error

from istar_envs.wire.values import dumps

logger = logging.getLogger(__name__)

_SHOWN: Final = 100
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(service: Service) -> Flask:
    """Make the application; ``service.start()`` lets it take requests.

    Args:
        service: What is served.
    """
    app = Flask("istar_envs.server", static_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=service.limits.max_body)
    guard(app, service)
    routes = Api(service).routes()
    for route in routes:
        _add(app, route)
    document = dumps(openapi_document(routes, with_token=bool(service.token)))
    health = _Health(service, document)
    app.add_url_rule("/", view_func=health.status)
    app.add_url_rule("/healthz", view_func=health.alive)
    app.add_url_rule("/readyz", view_func=health.ready)
    app.add_url_rule("/metrics", view_func=health.metrics)
    app.add_url_rule("/openapi.json", view_func=health.openapi)
    faults = _Faults(service)
    app.register_error_handler(IstarError, faults.refused)
    app.register_error_handler(HTTPException, faults.http)
    app.register_error_handler(Exception, faults.broken)
    return app


def _add(app: Flask, route: Route) -> None:
    path = route.path.replace("{session}", "<session>").replace("{env}", "<path:env>")
    app.add_url_rule(path, f"{route.method} {path}", route.view, methods=[route.method])


class _Health:
    """Answers of the routes for operators."""

    def __init__(self, service: Service, openapi: str) -> None:
        self._service = service
        self._openapi = openapi

    def alive(self) -> Response:
        """Say that the process works."""
        return _json({"status": self._service.state})

    def ready(self) -> Response:
        """Say whether requests are taken."""
        return _json({"status": self._service.state}, 200 if self._service.state == "ok" else 503)

    def metrics(self) -> Response:
        """Give all counts to Prometheus."""
        return Response(self._service.metrics.exposition(self._service.open_sessions()), mimetype=_PROMETHEUS)

    def openapi(self) -> Response:
        """Describe the API."""
        return Response(self._openapi, mimetype="application/json")

    def status(self) -> Response:
        """Show a page for people."""
        return status_page(self._service)


class _Faults:
    """Turns errors into problem documents."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def refused(self, error: IstarError) -> Response:
        """Answer what was refused."""
        return self._answer(refusal_of(error))

    def http(self, error: HTTPException) -> Response:
        """Answer what Flask refused."""
        place = f"{request.method} {request.path[:_SHOWN]}"
        detail = f"{error.name} ({place}). /openapi.json lists what there is and how much may be sent."
        response = self._answer(Refusal(error.code or 500, type(error).__name__, detail))
        allow = dict(error.get_headers()).get("Allow")
        if allow:
            response.headers["Allow"] = allow
        return response

    def broken(self, error: Exception) -> Response:
        """Answer what should not happen; only the log says what it was."""
        logger.error("request failed", exc_info=error, extra={"facts": {"request_id": g.get("request_id")}})
        return self._answer(Refusal(500, "ServerFailed", "the server has a fault; its log says more."))

    def _answer(self, refusal: Refusal) -> Response:
        request_id = g.get("request_id")
        facts = {
            "status": int(refusal.status),
            "request_id": request_id,
            "route": request.url_rule.rule if request.url_rule else "none",
            "detail": str(refusal)[:300],
        }
        self._service.metrics.fault(refusal.error, **facts)
        level = logging.WARNING if refusal.status >= 500 else logging.INFO
        logger.log(level, "refused", extra={"facts": {"error": refusal.error, **facts}})
        response = Response(dumps(refusal.document(request_id)), refusal.status, mimetype=CONTENT_TYPE)
        if refusal.retry_s is not None:
            response.headers["Retry-After"] = str(refusal.retry_s)
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="istar-envs", Basic realm="istar-envs"'
        return response


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(dumps(value), status, mimetype="application/json")
