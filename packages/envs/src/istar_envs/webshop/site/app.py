"""The shop as a Flask application, with the rules of every other session.

An address names a page and a signed cookie the visitor's goal, chosen options and purchase. The server
keeps nothing, so any number of processes can serve, and every page is reached through ``advance``.
"""

import hashlib
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from istar_envs.errors import EnvError
from istar_envs.language import InvalidAction
from istar_envs.webshop.labels import clean
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.pictures import picture_svg
from istar_envs.webshop.render import url_of
from istar_envs.webshop.session import Action, PageKind, State, advance, parse_action, purchase_of
from istar_envs.webshop.shop import MAX_HITS, Item, Shop
from istar_envs.webshop.site.html import to_html
from istar_envs.webshop.site.logs import SessionLog
from istar_envs.webshop.site.visits import SESSION_NAME, Visit
from istar_envs.webshop.ways import action_between, follow, way_to

try:
    from flask import Flask, Response, abort, jsonify, redirect, request, session
    from werkzeug.wrappers import Response as AnyResponse

    from istar_envs.webshop.site.guard import guard, html_response
except ImportError as error:
    raise EnvError(
        'the site needs Flask, which is not installed (WebShop). Run "pip install istar-envs[server]".'
    ) from error

MAX_BODY: Final = 64 * 1024
"""Largest form that is read, in bytes."""

_SUBPAGES: Final = "description, features, reviews, attributes"
_BUY: Final = Action("click", "buy now")
_PICTURE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=3600",
}


def create_app(
    shop: Shop, goals: Iterable[int], *, secret_key: str | bytes, log_folder: Path | None = None
) -> Flask:
    """Make the site of a shop; everything is loaded before the first request.

    Args:
        shop: What is sold, wanted and paid.
        goals: Indices of the goals that visitors may get.
        secret_key: Signs the cookies; whoever knows it can write any cookie.
        log_folder: Where session logs go; None writes none.

    Raises:
        EnvError: If there is no goal, a goal is not in the shop, or the key is empty.
    """
    if not secret_key:
        raise EnvError("secret_key is empty (WebShop site). Pass some random bytes: secrets.token_bytes(32).")
    site = _Site(shop, goals, SessionLog(log_folder))
    app = Flask("istar_envs.webshop.site", template_folder=None)
    app.config.update(
        SECRET_KEY=secret_key,
        SESSION_COOKIE_NAME="istar_webshop",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        MAX_CONTENT_LENGTH=MAX_BODY,
        SEND_FILE_MAX_AGE_DEFAULT=3600,
    )
    guard(app)
    app.add_url_rule("/", view_func=site.search, methods=["GET"])
    app.add_url_rule("/search", view_func=site.results, methods=["GET"])
    app.add_url_rule("/item/<path:asin>", view_func=site.item, methods=["GET"])
    app.add_url_rule(f"/item/<path:asin>/<any({_SUBPAGES}):kind>", view_func=site.subpage, methods=["GET"])
    app.add_url_rule("/item/<path:asin>", view_func=site.choose, methods=["POST"])
    app.add_url_rule("/buy/<path:asin>", view_func=site.buy, methods=["POST"])
    app.add_url_rule("/done", view_func=site.done, methods=["GET"])
    app.add_url_rule("/start", view_func=site.start, methods=["GET", "POST"])
    app.add_url_rule("/picture/<path:asin>.svg", view_func=site.picture, methods=["GET"])
    app.add_url_rule("/healthz", view_func=site.health, methods=["GET"])
    return app


def serve(app: Flask, host: str = "127.0.0.1", port: int = 3000, threads: int = 8) -> None:
    """Serve a site until interrupted.

    Args:
        app: Made by ``create_app``.
        host: Address to listen on; the default is reachable from this machine only.
        port: Port to listen on.
        threads: Requests answered at the same time.

    Raises:
        EnvError: If waitress is not installed or the address is taken.
    """
    try:
        import waitress  # type: ignore[import-untyped]
    except ImportError as error:
        raise EnvError(
            'waitress is not installed (WebShop site). Run "pip install istar-envs[server]".'
        ) from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise EnvError(
            f"cannot listen on {host}:{port}: {error.strerror} (WebShop site). Choose another port."
        ) from error
    with listener:
        waitress.serve(app, sockets=[listener], threads=threads, ident=None)


class _Site:
    """What answers requests; holds nothing that changes."""

    def __init__(self, shop: Shop, goals: Iterable[int], log: SessionLog) -> None:
        self.shop = shop
        self.goals = np.fromiter(goals, dtype=np.int32)
        self.log = log
        if not len(self.goals):
            raise EnvError("the list of goals is empty (WebShop site). Choose a split that has goals.")
        if self.goals.min() < 0 or self.goals.max() >= len(shop.goals):
            raise EnvError(f"goals are numbered from 0 to {len(shop.goals) - 1} (WebShop site, goals).")
        book = shop.goals
        identity = (shop.catalog.fingerprint, book.kind, shop.scoring, book.seed, shop.show_attributes)
        self.edition = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
        shop.hits(book.goal(int(self.goals[0])).text.lower())

    def search(self) -> AnyResponse:
        """Show the search box; a new visitor gets a goal."""
        if self._visit() is None:
            self._save(self._new_visit())
        return self._show(State())

    def results(self) -> AnyResponse:
        """Show a page of results."""
        return self._show(self._asked())

    def item(self, asin: str) -> AnyResponse:
        """Show a product."""
        return self._show(replace(self._asked(), kind=PageKind.ITEM, asin=asin))

    def subpage(self, asin: str, kind: str) -> AnyResponse:
        """Show a page about a product."""
        return self._show(replace(self._asked(), kind=PageKind(kind), asin=asin))

    def choose(self, asin: str) -> AnyResponse:
        """Take the chosen options from the form."""
        return self._act(asin)

    def buy(self, asin: str) -> AnyResponse:
        """Take the chosen options from the form and buy."""
        return self._act(asin, _BUY)

    def done(self) -> AnyResponse:
        """Show how good the purchase was."""
        visit = self._visit()
        if visit is None or not visit.is_over:
            return redirect("/", 303)
        state, goal = visit.state(self.shop), self.shop.goals.goal(visit.goal)
        score = self.shop.judge(purchase_of(self.shop, state), goal)
        return html_response(to_html(build_page(self.shop, goal, state, score), code=visit.code))

    def start(self) -> AnyResponse:
        """Begin anew, with the goal asked for or a random one."""
        name = request.args.get("session", "")
        goal = request.args.get("goal", "")
        if name and not SESSION_NAME.fullmatch(name):
            abort(400, "A session name has 1 to 64 letters, digits, dashes and underscores.")
        if not goal and "fixed" in name:
            goal = name.rpartition("_")[2]
        if not goal:
            self._save(self._new_visit(name))
        elif goal.isascii() and goal.isdecimal() and len(goal) < 10 and (self.goals == int(goal)).any():
            self._save(Visit(int(goal), name or f"fixed_{int(goal)}"))
        else:
            abort(404, f"There is no goal {goal[:20]} here. Try {self.goals[0]}.")
        return redirect("/", 303)

    def picture(self, asin: str) -> AnyResponse:
        """Draw a product."""
        row = self.shop.catalog.row(asin)
        if row is None:
            abort(404, "The shop does not sell such a product.")
        product = self.shop.catalog.product(row)
        value = request.args.get("value")
        if value is not None and not any(value in group.values for group in product.options):
            abort(404, "The product does not come like that.")
        return Response(picture_svg(product, value), mimetype="image/svg+xml", headers=_PICTURE_HEADERS)

    def health(self) -> AnyResponse:
        """Say that the site works and what it holds."""
        return jsonify(status="ok", products=len(self.shop.catalog), goals=len(self.goals))

    def _visit(self) -> Visit | None:
        """Read the cookie; one of another edition of the shop counts as none."""
        data = session.get("visit")
        return Visit.from_cookie(data) if session.get("edition") == self.edition and data else None

    def _save(self, visit: Visit) -> None:
        session["edition"], session["visit"] = self.edition, visit.to_cookie()

    def _new_visit(self, name: str = "") -> Visit:
        return Visit(int(secrets.choice(self.goals)), name or secrets.token_hex(8))

    def _asked(self) -> State:
        """Read query and page number of the address."""
        query, number = request.args.get("q", ""), request.args.get("page", "1")
        parsed = parse_action(f"search[{query}]")
        if isinstance(parsed, InvalidAction):
            visit = self._visit()
            if visit is not None and not visit.is_over:
                self._record(visit, f"search[{query[:100]}]", State(), valid=False)
            abort(400, f"Search for something else: {parsed.reason}.")
        if not (number.isascii() and number.isdecimal() and len(number) < 4 and 1 <= int(number) <= MAX_HITS):
            abort(404, "There is no such page of results.")
        return State(PageKind.RESULTS, parsed.argument, int(number))

    def _reach(self, visit: Visit, target: State) -> tuple[Visit, State]:
        """Walk to the page of an address; options stay chosen while the product stays open."""
        state = follow(self.shop, way_to(self.shop, target))
        if isinstance(state, InvalidAction):
            abort(404, "This search does not lead to such a page.")
        chosen = visit.state(self.shop).chosen if state.asin and state.asin == visit.asin else ()
        state = replace(state, chosen=chosen, opened=frozenset())
        before = visit.state(self.shop, state.query)
        if state != before:
            action = action_between(self.shop, before, state)
            visit = visit.move(self.shop, state, steps=1)
            self._record(visit, str(action or f"visit[{url_of(state)}]"), state)
        return visit, state

    def _show(self, target: State) -> AnyResponse:
        visit = self._visit()
        if visit is None:
            return redirect("/", 303)
        if visit.is_over:
            return redirect("/done", 303)
        visit, state = self._reach(visit, target)
        self._save(visit)
        return html_response(to_html(build_page(self.shop, self.shop.goals.goal(visit.goal), state)))

    def _act(self, asin: str, *more: Action) -> AnyResponse:
        visit = self._visit()
        if visit is None or visit.is_over:
            return redirect("/done" if visit else "/", 303)
        visit, state = self._reach(visit, replace(self._asked(), kind=PageKind.ITEM, asin=asin))
        for action in (*_picks(self.shop.item(state.asin), state, request.form), *more):
            after = advance(self.shop, state, action)
            if isinstance(after, InvalidAction):
                abort(400, f"That cannot be done: {after.reason}.")
            state = after
            visit = visit.move(self.shop, state, steps=1)
            self._record(visit, str(action), state)
        self._save(visit)
        return redirect(url_of(state), 303)

    def _record(self, visit: Visit, action: str, state: State, *, valid: bool = True) -> None:
        goal = self.shop.goals.goal(visit.goal)
        facts: dict[str, Any] = {
            "time": round(time.time(), 3),
            "session": visit.session,
            "step": visit.steps,
            "action": action,
            "url": url_of(state),
            "page": state.kind.value,
            "goal": visit.goal,
            "valid": valid,
        }
        if state.kind is PageKind.DONE:
            facts["reward"] = self.shop.judge(purchase_of(self.shop, state), goal).total
        self.log.write(f"{visit.session}.{visit.log}", facts)


def _picks(item: Item, state: State, form: Mapping[str, str]) -> list[Action]:
    """Return the clicks on options that the form has and the visit has not."""
    chosen = dict(state.chosen)
    clicks = {}
    for group in item.groups:
        picked = form.get(group.name)
        if picked is None:
            continue
        for choice in group.choices:
            if clean(choice.value) == clean(picked):
                if chosen.get(group.name) != choice.value:
                    clicks[group.name] = Action("click", choice.label)
                break
    return list(clicks.values())
