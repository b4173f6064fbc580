"""The Flask application of a server."""

from typing import Final

from istar_envs.errors import EnvError
from istar_envs.server.service import Service

try:
    from flask import Flask, Response, request

    from istar_envs.server.api import Api, Route
    from istar_envs.server.faults import answer_to
    from istar_envs.server.gate import Gate
    from istar_envs.server.openapi import openapi_document
    from istar_envs.server.status import status_page
except ImportError as error:
    raise EnvError(
        'the server needs Flask, which is not installed. Run "pip install istar-envs[server]".'
    ) from error

from istar_envs.wire.values import dumps

_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(service: Service) -> Flask:
    """Make the application; ``service.start()`` lets it take requests.

    Args:
        service: What is served.
    """
    app = Flask("istar_envs.server", static_folder=None)
    api = Api(service)
    routes = api.routes()
    for route in routes:
        _add(app, route)
    document = dumps(openapi_document(routes, with_token=bool(service.token)))
    health = _Health(service, document)
    app.add_url_rule("/", view_func=health.status)
    app.add_url_rule("/healthz", view_func=health.alive)
    app.add_url_rule("/readyz", view_func=health.ready)
    app.add_url_rule("/metrics", view_func=health.metrics)
    app.add_url_rule("/openapi.json", view_func=health.openapi)

    def answer_error(error: Exception) -> Response:
        answer = answer_to(error, request.environ, service.metrics)
        return Response(answer.body, answer.status, answer.headers)

    def name_route(response: Response) -> Response:
        request.environ["istar.route"] = request.url_rule.rule if request.url_rule else "none"
        return response

    app.register_error_handler(Exception, answer_error)
    app.after_request(name_route)
    app.wsgi_app = Gate(service, api, app.wsgi_app)  # type: ignore[method-assign]
    return app


def _add(app: Flask, route: Route) -> None:
    path = route.path.replace("{session}", "<session>").replace("{env}", "<path:env>")

    def view(**parameters: str) -> Response:
        return _json(route.view(request.environ, **parameters), route.status)

    app.add_url_rule(path, f"{route.method} {path}", view, methods=[route.method])


class _Health:
    """Answers of the routes for operators."""

    def __init__(self, service: Service, openapi: str) -> None:
        self._service = service
        self._openapi = openapi

    def alive(self) -> Response:
        """Say that the process works."""
        return _json(dumps({"status": self._service.state}))

    def ready(self) -> Response:
        """Say whether requests are taken."""
        return _json(dumps({"status": self._service.state}), 200 if self._service.state == "ok" else 503)

    def metrics(self) -> Response:
        """Give all counts to Prometheus."""
        return Response(self._service.metrics.exposition(self._service.open_sessions()), mimetype=_PROMETHEUS)

    def openapi(self) -> Response:
        """Describe the API."""
        return _json(self._openapi)

    def status(self) -> Response:
        """Show a page for people."""
        return status_page(self._service)


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, mimetype="application/json")
