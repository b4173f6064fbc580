"""The command ``istar-envs``: fetch, index, serve, list.

Every command answers ``--help``. A mistake ends with one line that says what, where and how to fix
it, and exit code 2; Ctrl-C ends quietly with 130.
"""

import argparse
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from istar_envs.command_line import is_loopback, run_command, whole_number
from istar_envs.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from istar_envs.webshop.catalog import Catalog


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Carry a command out.

    Args:
        argv: Arguments without the program name.

    Returns:
        Exit code: 0, 2 on a mistake, 130 when interrupted.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger(__package__).setLevel(logging.INFO)
    return run_command("istar-envs", argv, {name: _parsed(name, *entry) for name, entry in _COMMANDS.items()})


def _parsed(
    name: str, command: Callable[[argparse.Namespace], None], describe: "_Describe"
) -> Callable[[list[str]], None]:
    """Let a command read its arguments by the parser that describes them."""

    @wraps(command)
    def carry_out(argv: list[str]) -> None:
        parser = _Parser(prog=f"istar-envs {name}", description=command.__doc__, allow_abbrev=False)
        describe(parser)
        command(parser.parse_args(argv))

    return carry_out


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in the house's way: one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See {self.prog} --help.")


def _fetch(args: argparse.Namespace) -> None:
    """Download published data files, verified by their checksums."""
    from istar_envs.cache import cache_folder
    from istar_envs.fetch import fetch, find_data_set

    data_set = find_data_set(args.data, args.size)
    folder = args.to or cache_folder() / "fetched" / f"{data_set.name}-{data_set.size}"
    with _ProgressLine() as line:
        brought = fetch(data_set, folder, source=args.source, progress=line.show)
    print(f"{data_set.about}: {folder} ({len(brought)} of {len(data_set.files)} files fetched, others kept)")
    print(f"licence: {data_set.licence}")
    check = _CHECKS.get(data_set.name)
    if check is not None:
        print(check(folder))


def _check_webshop(folder: Path) -> str:
    """Read every product once, so that a file without a checksum is not taken on trust."""
    from istar_envs.webshop.official import read_official

    count = sum(1 for _ in read_official(folder))
    return f'{count:,} products can be read; play them with catalogue="{folder}"'


_CHECKS: dict[str, Callable[[Path], str]] = {"webshop": _check_webshop}


def _describe_fetch(parser: argparse.ArgumentParser) -> None:
    from istar_envs.fetch import data_sets

    sets = "; ".join(f"{entry}: {entry.about}" for entry in data_sets())
    parser.epilog = (
        f"Known: {sets}. A download that broke goes on where it stopped, right files are kept, wrong ones "
        "are refused. Proxies are taken from http_proxy, https_proxy and no_proxy."
    )
    parser.add_argument("data", metavar="NAME", help="what to fetch, such as webshop")
    parser.add_argument("--size", help="which of its sizes; the first known one by default")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="where to; below the cache folder by default"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="URL_OR_FOLDER",
        help="take the files from here: an http(s) address below which they are, or a folder",
    )


def _index(args: argparse.Namespace) -> None:
    """Build the store of a catalogue, which holds its search index, before the first use does."""
    from istar_envs.webshop.sources import open_catalogue

    catalog = open_catalogue(args.catalogue)
    if args.out is not None:
        _copy_store(catalog.folder, args.out)
        catalog = open_catalogue(args.out)
    if args.engine == "pyserini":
        _build_lucene_index(catalog)
    print(
        f'{catalog.name}: {len(catalog):,} products in {catalog.folder}; search="{args.engine}" can be used'
    )


def _build_lucene_index(catalog: "Catalog") -> None:
    from istar_envs.webshop.lucene import build_lucene_index

    try:
        build_lucene_index(catalog, catalog.folder / "lucene")
    except OSError as error:
        raise EnvError(
            f"cannot write the index into {catalog.folder}: {error.strerror or error}. "
            f"Name a folder of your own with --out and play with that as the catalogue."
        ) from error


def _copy_store(store: Path, out: Path) -> None:
    """Copy a store so that nothing half-copied is ever found in its place."""
    draft = out.with_name(f"{out.name}.part-{os.getpid()}")
    try:
        if out.exists() and any(out.iterdir()):
            raise ConfigError(
                f"{out} is not empty. Choose another --out, or name the store in it as CATALOGUE."
            )
        shutil.copytree(store, draft, copy_function=shutil.copyfile)
        draft.replace(out)
    except OSError as error:
        raise EnvError(f"cannot write the store {out}: {error}. Choose another --out.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _describe_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "catalogue",
        metavar="CATALOGUE",
        help="generated, generated-N, or the folder of a store or of official files",
    )
    parser.add_argument(
        "--engine",
        choices=("bm25", "pyserini"),
        default="bm25",
        help='bm25: the own search, always built (default); pyserini: Lucene\'s too (extra "lucene")',
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="copy the store here; it stays in the cache by default"
    )


def _serve(args: argparse.Namespace) -> None:
    """Serve environments to programs, or the shop to people."""
    if "webshop" in args.names:
        if args.all or args.names != ["webshop"]:
            raise ConfigError(
                "webshop is a web site of its own: serve it alone, and environments in another process."
            )
        _serve_shop(args)
        return
    if bool(args.names) == args.all:
        raise ConfigError("NAME is missing or one too many: give ids of environments, --all, or webshop.")
    from istar_envs.server.command import serve_environments

    serve_environments(args)


def _serve_shop(args: argparse.Namespace) -> None:
    from istar_envs.webshop.opening import open_shop
    from istar_envs.webshop.site.app import create_app, serve

    port = args.port or _SHOP_PORT
    secret = _secret(args.secret_file)
    shop = open_shop(args.catalogue, goals=args.goals, scoring=args.scoring)
    goals = shop.goals.split(args.split_scheme or _USUAL_SCHEME[args.scoring], args.split)
    app = create_app(shop, goals.tolist(), secret_key=secret, log_folder=args.log)
    if not is_loopback(args.host):
        print(
            f"istar-envs serve: warning: {args.host} can be reached from other machines, and whoever "
            "reaches it can use the shop. The default --host 127.0.0.1 keeps it on this one.",
            file=sys.stderr,
        )
    place = f"[{args.host}]" if ":" in args.host else args.host
    print(f"{shop.catalog.name} shop at http://{place}:{port}/; Ctrl-C ends it", flush=True)
    serve(app, host=args.host, port=port, threads=args.threads)


_SHOP_PORT = 3000
_USUAL_SCHEME = {"compat": "webshop-original", "strict": "strict"}


def _secret(path: Path | None) -> bytes:
    """Read the key that signs cookies, or draw one."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read --secret-file {path}: {error.strerror}. Correct the path.") from error
    if len(key) < 16:
        raise ConfigError(
            f"--secret-file {path} holds {len(key)} bytes; write at least 16 random ones into it."
        )
    return key


def _describe_serve(parser: argparse.ArgumentParser) -> None:
    from istar_envs.server.command import describe

    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="ids of environments for programs, or webshop for people"
    )
    _describe_address(parser)
    describe(parser)
    _describe_shop(parser)


def _describe_address(parser: argparse.ArgumentParser) -> None:
    from istar_envs.server.command import DEFAULT_PORT

    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default: this machine only"
    )
    ports = f"{DEFAULT_PORT} for environments, {_SHOP_PORT} for webshop"
    parser.add_argument("--port", type=whole_number(65535), help=f"default: {ports}")
    parser.add_argument(
        "--threads", type=whole_number(1000), default=8, help="requests answered at a time; default: 8"
    )


def _describe_shop(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("webshop")
    group.add_argument(
        "--catalogue", default="generated", help="generated (default), generated-N, or a folder"
    )
    group.add_argument(
        "--goals", choices=("synthetic", "human"), default="synthetic", help="who wrote the goals"
    )
    group.add_argument("--split", choices=("train", "dev", "test"), default="test", help="default: test")
    group.add_argument(
        "--split-scheme",
        choices=("webshop-original", "istar", "strict"),
        help="default: webshop-original, or strict with --scoring strict",
    )
    group.add_argument("--scoring", choices=("compat", "strict"), default="compat", help="default: compat")
    group.add_argument(
        "--log", type=Path, metavar="FOLDER", help="write every visit's actions here, as JSON lines"
    )
    group.add_argument(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help="key that signs cookies, at least 16 bytes; visits then outlive a restart",
    )


def _list(args: argparse.Namespace) -> None:
    """List the environments, one line each."""
    from gymnasium.envs.registration import load_env_creator

    from istar_envs.registration import ENTRIES

    for env_id, entry in sorted(ENTRIES.items()):
        summary = (load_env_creator(entry.entry_point).__doc__ or "").strip().partition("\n")[0]
        options = ", ".join(f"{name}={value}" for name, value in entry.options.items())
        print(f"{env_id:<25} {summary}{f' ({options})' if options else ''}")


class _ProgressLine:
    """One line on a terminal that shows how far a download is; silent elsewhere."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> "_ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print(file=sys.stderr)

    def show(self, name: str, done: int, total: int | None) -> None:
        """Write the line anew if it would change."""
        of_all = f" of {total / 1e6:.1f}" if total else ""
        text = f"{name}: {done / 1e6:.1f}{of_all} MB"
        if text != self._shown and sys.stderr.isatty():
            print(f"\r{text:<{len(self._shown)}}", end="", file=sys.stderr, flush=True)
            self._shown = text


_Describe = Callable[[argparse.ArgumentParser], None]
_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], _Describe]] = {
    "fetch": (_fetch, _describe_fetch),
    "index": (_index, _describe_index),
    "serve": (_serve, _describe_serve),
    "list": (_list, lambda _: None),
}
