"""``istar-envs serve`` for environments: its options, and what it does with them."""

import argparse
import gc
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from istar_envs.command_line import is_loopback, whole_number
from istar_envs.errors import ConfigError, EnvError
from istar_envs.server.limits import Limits
from istar_envs.server.logs import JsonLines
from istar_envs.server.worlds import Worlds, servable_ids

logger = logging.getLogger(__name__)

DEFAULT_PORT: Final = 8700
_USUAL: Final = Limits()
_MIN_TOKEN: Final = 16
_GARBAGE: Final = 5_000
"""New objects after which garbage is looked for; a batch alone makes thousands that are soon forgotten."""


def describe(parser: argparse.ArgumentParser) -> None:
    """Add the options of the session API to a parser."""
    group = parser.add_argument_group("environments")
    group.add_argument("--all", action="store_true", help="every environment that works on this machine")
    group.add_argument(
        "--options",
        type=Path,
        metavar="FILE",
        help="JSON: arguments of environments by id; clients cannot change them",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="clients must send the token in this file, 16 characters or more",
    )
    for flag, value, about in (
        ("--max-sessions", _USUAL.max_sessions, "sessions open at a time"),
        ("--max-browsers", _USUAL.max_browsers, "sessions among them that run a browser each"),
        ("--idle-s", int(_USUAL.idle_s), "seconds after which an unused session is closed"),
        ("--max-body", _USUAL.max_body, "bytes of a request"),
        ("--rate", int(_USUAL.rate), "requests per second and client address"),
        ("--request-s", int(_USUAL.request_s), "seconds in which a request must have arrived"),
        ("--grace-s", int(_USUAL.grace_s), "seconds that running calls get when the server is stopped"),
    ):
        group.add_argument(
            flag, type=whole_number(10**9), default=value, metavar="N", help=f"{about}; default: {value}"
        )
    group.add_argument("--log-requests", action="store_true", help="also log every request that went well")


def serve_environments(args: argparse.Namespace) -> None:
    """Serve environments until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: If an option is wrong.
        EnvError: If an environment cannot be made or the address is taken.
    """
    from istar_envs.server.service import Service
    from istar_envs.server.serving import Server, stopped_by_signals

    options = {} if args.options is None else _read_options(args.options)
    token = "" if args.token_file is None else _read_token(args.token_file)
    _log_as_json(requests=args.log_requests)
    names = _usable(options) if args.all else args.names
    limits = Limits(
        max_sessions=args.max_sessions,
        max_browsers=args.max_browsers,
        idle_s=args.idle_s,
        max_body=args.max_body,
        rate=args.rate,
        request_s=args.request_s,
        grace_s=args.grace_s,
    )
    service = Service(Worlds(names, options), limits, token)
    server = Server(service, host=args.host, port=args.port or DEFAULT_PORT, threads=args.threads)
    if not token and not is_loopback(args.host):
        logger.warning(
            "%s can be reached from other machines, and whoever reaches it can play. Give --token-file, or "
            "let only those in who may.",
            args.host,
        )
    with _seldom_collected(), stopped_by_signals(server):
        sys.stdout.write(f"{len(service.worlds.names)} environments at {server.url}/; Ctrl-C ends it\n")
        sys.stdout.flush()
        server.run()


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python look for garbage less often, and not in what has been loaded by now."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _usable(options: dict[str, dict[str, Any]]) -> list[str]:
    """Return the ids of what can be made here; the others are told in the log."""
    usable = []
    for name in servable_ids():
        try:
            Worlds([name], {name: options.get(name, {})}).make(name, {}).close()
        except EnvError as error:
            logger.warning("left out", extra={"facts": {"env": name, "detail": str(error)}})
        else:
            usable.append(name)
    return usable


def _log_as_json(*, requests: bool) -> None:
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines())
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    if requests:
        logging.getLogger("istar_envs.server").setLevel(logging.DEBUG)


def _read_options(path: Path) -> dict[str, dict[str, Any]]:
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read --options {path}: {error}. It holds JSON.") from error
    if not isinstance(options, dict) or not all(isinstance(value, dict) for value in options.values()):
        raise ConfigError(
            f'--options {path} holds no options by id. Write {{"istar/WebShop-v0": {{"split": "test"}}}}.'
        )
    return options


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --token-file {path}: {error}. Correct the path.") from error
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {path} holds no token of at least {_MIN_TOKEN} ASCII characters. Write random "
            "ones: openssl rand -hex 32."
        )
    return token
