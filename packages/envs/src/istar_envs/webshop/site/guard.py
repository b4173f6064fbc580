"""What keeps the site safe: headers on every answer, no forms from elsewhere, faults that help."""

from typing import Final

from flask import Flask, Response, abort, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from istar_envs.webshop.site.html import fill

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def guard(app: Flask) -> None:
    """Add the guards to an application."""
    app.before_request(_refuse_foreign_forms)
    app.after_request(_add_headers)
    app.register_error_handler(HTTPException, _show_fault)


def html_response(text: str) -> Response:
    """Answer with a document; what Unicode cannot encode becomes a question mark."""
    return Response(text.encode("utf-8", "replace"), mimetype="text/html")


def _show_fault(error: HTTPException) -> AnyResponse:
    page = html_response(fill("fault", heading=error.name, reason=error.description or ""))
    page.status_code = error.code or 500
    return page


def _refuse_foreign_forms() -> None:
    """Refuse forms that another site sent on behalf of the visitor."""
    if request.method != "POST":
        return
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    origin = request.headers.get("Origin")
    if site not in ("same-origin", "none") or (origin and origin.partition("//")[2] != request.host):
        abort(403, "This form came from another site.")


def _add_headers(response: AnyResponse) -> AnyResponse:
    for name, value in _HEADERS.items():
        if name != "Cache-Control" or request.endpoint != "static":
            response.headers.setdefault(name, value)
    return response
