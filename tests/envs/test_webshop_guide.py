"""The page on WebShop names what exists: arguments, keys of ``info`` and of pages, commands and options."""

import argparse
import inspect
import re
from pathlib import Path

import pytest

import istar_envs
from istar_envs import cli
from istar_envs.registration import env_ids
from istar_envs.webshop.browser import WebShopBrowserEnv
from istar_envs.webshop.env import OBSERVATIONS, WebShopEnv
from istar_envs.webshop.session import PageKind
from istar_envs.webshop.splits import RANGES

GUIDE = Path(__file__).parents[2] / "docs" / "envs" / "webshop.md"


def section(heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    return re.split(r"^## ", GUIDE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2], flags=re.M)[
        0
    ]


def first_column(text: str) -> set[str]:
    """What the first cells of a section's tables set in code."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def parameters(kind: type) -> set[str]:
    return set(inspect.signature(kind).parameters)


def test_every_id_is_named():
    page = GUIDE.read_text(encoding="utf-8")
    assert all(f"`{env_id}`" in page for env_id in env_ids() if "WebShop" in env_id)


def test_every_argument_has_a_row():
    assert first_column(section("Arguments")) == parameters(WebShopEnv)


def test_every_argument_of_the_browser_has_a_row():
    own = first_column(section("In a browser"))
    assert own <= parameters(WebShopBrowserEnv)
    assert parameters(WebShopEnv) | own == parameters(WebShopBrowserEnv) | {"show_chosen"}


def test_arguments_that_text_and_browser_share_have_equal_defaults():
    text, browser = (inspect.signature(kind).parameters for kind in (WebShopEnv, WebShopBrowserEnv))
    assert {name: text[name].default for name in text if name in browser} == {
        name: browser[name].default for name in browser if name in text
    }


def test_every_observation_mode_has_a_row():
    assert first_column(section("Observations")) == set(OBSERVATIONS)


def test_every_page_and_split_scheme_is_named():
    assert all(f"`{kind}`" in section("`info`") for kind in PageKind)
    assert first_column(section("Goals and splits")) - {"split_scheme"} == {*RANGES, "strict"}


def test_every_key_of_info_and_of_a_structured_page_is_named():
    env = istar_envs.make("istar/WebShop-v1", observation="structured")
    page, info = env.reset(seed=0)
    assert first_column(section("`info`")) == set(info)
    assert all(f"`{key}`" in section("Observations") for key in page)


@pytest.mark.parametrize("command", sorted(cli._COMMANDS))
def test_every_command_is_shown(command):
    assert f"istar-envs {command}" in GUIDE.read_text(encoding="utf-8")


def test_every_option_of_the_site_has_a_row():
    parser = argparse.ArgumentParser()
    cli._describe_address(parser)
    cli._describe_shop(parser)
    options = {word for action in parser._actions for word in action.option_strings} - {"-h", "--help"}
    assert {name.split()[0] for name in first_column(section("The site"))} == options
