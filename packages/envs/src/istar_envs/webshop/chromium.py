"""A headless Chromium under Selenium's control that waits for pages and leaves nothing behind."""

import io
import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from istar_envs.errors import EnvError, MissingAsset, ServerUnreachable

try:
    from selenium.common.exceptions import TimeoutException, WebDriverException
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.wait import WebDriverWait
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise MissingAsset(
        'selenium is not installed (Chromium). Run "pip install istar-envs[browser]".'
    ) from error

BINARIES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Names under which the browser is looked for on the PATH."""

TIMEOUT_S: Final = 20.0
"""How long a page may take, in seconds."""

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-partial-raster",
    "--disable-checker-imaging",
)
"""The last two draw pages as a whole: drawn in parts as it comes, the same page can differ by some pixels."""
_STILL: Final = [
    {"name": "prefers-color-scheme", "value": "light"},
    {"name": "prefers-reduced-motion", "value": "reduce"},
]
_TRIES: Final = 100
"""How often a profile is removed in which dying processes still write."""

_LEASH: Final = """
exec 3<&0
{ read -r _ <&3; kill -KILL 0; } &
exec "$0" "$@" 3<&-
"""
"""Runs a program, and ends its process group when standard input ends, which Selenium holds open."""

_HAS_ARRIVED: Final = "return !window.isLeft && document.readyState === 'complete'"
_LEAVE: Final = """
const [done] = arguments;
requestAnimationFrame(() => { document.activeElement?.blur(); done(); });
"""
"""Leaves the box that has the cursor; a page gives it to one that asks for it before its next frame."""
_HINT: Final = 'On Debian and Ubuntu: "apt-get install chromium chromium-driver".'


class Chromium:
    """One browser process with a profile of its own; gone on ``close``, garbage collection and exit.

    It ends with this process even if that is killed; only its profile is left then.

    Args:
        binary: Path of the browser; None looks for ``BINARIES`` on the PATH.
        width: Of the page, in pixels.
        height: Of the page, in pixels.

    Attributes:
        driver: Selenium's handle.
        profile: Folder of everything that the browser writes.

    Raises:
        MissingAsset: If the browser or chromedriver is not installed.
        EnvError: If the browser does not start.
    """

    def __init__(self, binary: str | None = None, *, width: int = 1280, height: int = 800) -> None:
        browser = find("browser", (binary,) if binary else BINARIES)
        chromedriver = find("chromedriver", ("chromedriver",))
        self.profile = Path(tempfile.mkdtemp(prefix="istar-chromium-"))
        options = ChromeOptions()
        options.binary_location = browser
        for flag in (*_FLAGS, f"--user-data-dir={self.profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        try:
            self.driver = Chrome(options=options, service=_Leashed(chromedriver))
        except WebDriverException as error:
            shutil.rmtree(self.profile, ignore_errors=True)
            raise EnvError(f"{browser} does not start: {error.msg} (Chromium). {_HINT}") from error
        self._finalizer = weakref.finalize(self, _stop, self.driver, self.profile)
        with _told():
            self.driver.set_page_load_timeout(TIMEOUT_S)
            self._command("Emulation.setEmulatedMedia", features=_STILL)
            self._command(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=False,
            )

    def open(self, url: str) -> None:
        """Load a page.

        Raises:
            ServerUnreachable: If it does not load in time.
        """
        with _told():
            self.driver.get(url)

    def click(self, selector: str, text: str = "") -> None:
        """Click what leads to another page, and wait for that page.

        Args:
            selector: CSS selector; the first match is clicked.
            text: If given, the ``data-click`` attribute that the match must have.

        Raises:
            EnvError: If the page has no such thing.
            ServerUnreachable: If the next page does not come in time.
        """
        with _told():
            self.driver.execute_script("window.isLeft = true")
            self._find(selector, text).click()
            wait = WebDriverWait(self.driver, TIMEOUT_S, 0.01, ignored_exceptions=[WebDriverException])
            wait.until(lambda driver: driver.execute_script(_HAS_ARRIVED))

    def write(self, selector: str, text: str) -> None:
        """Write text into a box, in place of what it holds.

        Raises:
            EnvError: If the page has no such box.
        """
        with _told():
            box = self._find(selector, "")
            box.clear()
            box.click()
            self._command("Input.insertText", text=text)

    def html(self) -> str:
        """Return the present document as HTML."""
        with _told():
            return str(self.driver.page_source)

    def picture(self) -> NDArray[np.uint8]:
        """Return the upper part of the page as seen, uint8[height, width, 3], without cursor and pointer."""
        with _told():
            self.driver.execute_async_script(_LEAVE)
            self._command("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
            png = self.driver.get_screenshot_as_png()
        with Image.open(io.BytesIO(png)) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8).copy()

    def close(self) -> None:
        """End the process and remove its profile; calling it again does nothing."""
        self._finalizer()

    def _find(self, selector: str, text: str) -> WebElement:
        found: list[WebElement] = self.driver.execute_script(
            "const [selector, text] = arguments;"
            "return [...document.querySelectorAll(selector)].filter(e => !text || e.dataset.click === text)",
            selector,
            text,
        )
        if not found:
            raise EnvError(
                f"the page at {self.driver.current_url} has no {selector} {text!r} (Chromium). "
                "Is it the shop's own site?"
            )
        return found[0]

    def _command(self, name: str, **arguments: Any) -> None:
        self.driver.execute_cdp_cmd(name, arguments)


class _Leashed(Service):
    """A chromedriver that ends with this process, however that ends, and its browser with it."""

    def __init__(self, chromedriver: str) -> None:
        super().__init__(popen_kw={"start_new_session": True})
        self.path = "/bin/sh"
        self._chromedriver = chromedriver

    def command_line_args(self) -> list[str]:
        return ["-c", _LEASH, self._chromedriver, *super().command_line_args()]


def find(what: str, names: tuple[str, ...]) -> str:
    """Find a program.

    Args:
        what: What it is, for the error.
        names: Its possible names or paths, best first.

    Raises:
        MissingAsset: If none is there.
    """
    paths = [path for path in map(shutil.which, names) if path]
    if not paths:
        raise MissingAsset(f"no {what} found: {', '.join(names)} (Chromium). {_HINT}")
    return paths[0]


@contextmanager
def _told() -> Iterator[None]:
    """Tell what the browser reports as an error of this package."""
    try:
        yield
    except TimeoutException as error:
        raise ServerUnreachable(
            f"no page came within {TIMEOUT_S} s (Chromium). Is the site running?"
        ) from error
    except (WebDriverException, HTTPError) as error:
        reason = error.msg if isinstance(error, WebDriverException) else error
        raise EnvError(
            f"the browser failed: {reason} (Chromium). Reset, or close and make another."
        ) from error


def _stop(driver: Chrome, profile: Path) -> None:
    """Quit, end what did not quit (a driver that died leaves its browser behind), and clean up."""
    with suppress(WebDriverException, HTTPError):
        driver.quit()
    for _ in range(_TRIES):
        _kill_users(profile)
        shutil.rmtree(profile, ignore_errors=True)
        if not profile.exists():
            return
        time.sleep(0.02)


def _kill_users(profile: Path) -> None:
    """End the processes that were started with a profile, on systems that show them as files."""
    flag = f"--user-data-dir={profile}".encode()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if flag in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)
