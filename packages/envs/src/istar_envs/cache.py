"""Where made and fetched files are kept between runs."""

import logging
import os
import tempfile
from pathlib import Path
from typing import Final

from istar_envs.errors import ConfigError

VARIABLE: Final = "ISTAR_CACHE"
"""Environment variable that names the folder to use instead."""

_logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder for files that can be made or fetched again, and make it if it is absent.

    The first of these: what ISTAR_CACHE names (taken as it is, so that it may be read-only and
    filled beforehand), ``istar`` in XDG_CACHE_HOME, ``~/.cache/istar``. A home folder that cannot
    be written gives way to a temporary folder of this user, with a warning.

    Raises:
        ConfigError: If ISTAR_CACHE names something that is not a folder and cannot become one, or
            if no folder can be written at all.
    """
    if chosen := os.environ.get(VARIABLE):
        folder = Path(chosen).expanduser()
        if not _make(folder):
            raise ConfigError(
                f"cache folder {folder} (environment variable {VARIABLE}) is not there and cannot be made. "
                "Set the variable to a folder that exists or can be made, or unset it."
            )
        return folder
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "istar"
    if _make(home) and os.access(home, os.W_OK):
        return home
    return _temporary(home)


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return True


def _temporary(home: Path) -> Path:
    """Return this user's folder among the temporary files; nobody else may own or write it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"istar-{user}"
    if _make(folder) and (not hasattr(os, "getuid") or folder.stat().st_uid == user):
        folder.chmod(0o700)
        _logger.warning("%s cannot be written; using %s. Set %s to choose a folder.", home, folder, VARIABLE)
        return folder
    raise ConfigError(
        f"neither {home} nor {folder} can be used as cache folder. Set {VARIABLE} to a folder of your own."
    )
