"""The shop in a real Chromium: the same episodes as the text environment, and nothing left behind."""

import copy
import gc
import pickle
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from webshop_shop import PRODUCTS

from child_process import running
from istar_envs.errors import EnvError, MissingAsset, ResetNeeded
from istar_envs.webshop.browser import WebShopBrowserEnv
from istar_envs.webshop.build import build_store
from istar_envs.webshop.chromium import Chromium, find
from istar_envs.webshop.env import WebShopEnv
from istar_envs.webshop.site.app import create_app
from istar_envs.webshop.site.html import visible_text
from istar_envs.webshop.site.local import LocalSite

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason='no chromium and chromedriver on the PATH; "apt-get install chromium chromium-driver"',
    ),
]

QUERIES = ("lamp", "acme odd lamp", "no such thing", "größe & <b>", "灯 🪔", "a" * 1000)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the odd products, each with a goal."""
    folder = tmp_path_factory.mktemp("shop") / "store"
    products = [
        replace(
            product,
            instruction=f"Find me a sturdy {product.title.strip().lower()}",
            instruction_attributes=("sturdy",),
        )
        for product in PRODUCTS
        if product.asin.isupper()
    ]
    build_store(folder, products, name="odd")
    return folder


def options(store: Path | str, scoring: str = "strict", **more: object) -> dict:
    return {"catalogue": store, "scoring": scoring, "split_scheme": "strict", **more}


@pytest.fixture(scope="module")
def env(store: Path) -> Iterator[WebShopBrowserEnv]:
    env = WebShopBrowserEnv(**options(store))
    yield env
    env.close()


def next_action(env: WebShopEnv, rng: random.Random) -> str:
    """What an expert would do, something possible, or nonsense."""
    draw = rng.random()
    if draw < 0.3:
        return env.expert_action()
    if draw < 0.4:
        return rng.choice(("click[no such thing]", "buy", "search[<r>]", "search[lamp]", "click[buy now]"))
    action = rng.choice(env._info(None)["admissible_actions"])
    return f"search[{rng.choice(QUERIES)}]" if action.startswith("search") else action


@pytest.mark.parametrize(
    ("catalogue", "scoring", "num_episodes"),
    [("odd", "compat", 13), ("odd", "strict", 12), ("generated", "compat", 25)],
)
def test_fifty_episodes_are_the_same_in_text_and_browser(store, catalogue, scoring, num_episodes):
    chosen = options(store if catalogue == "odd" else catalogue, scoring, show_attributes=True, max_steps=15)
    text, browser = WebShopEnv(**chosen), WebShopBrowserEnv(**chosen)
    rng = random.Random(7)
    purchases = 0
    for episode in range(num_episodes):
        goal = rng.randrange(len(text.shop.goals))
        assert browser.reset(seed=episode, options={"goal": goal}) == text.reset(options={"goal": goal})
        ended = False
        while not ended:
            action = next_action(text, rng)
            here, there = text.step(action), browser.step(action)
            assert there == here, action
            ended = here[2] or here[3]
        purchases += here[2]
    assert purchases >= num_episodes // 4
    browser.close()


def test_html_is_the_page_of_the_browser(store):
    env = WebShopBrowserEnv(**options(store, observation="html"))
    text = WebShopEnv(**options(store))
    html, info = env.reset(options={"goal": 1})
    assert html.startswith("<html")
    assert visible_text(html) == text.reset(options={"goal": 1})[0]
    assert env.language.text(html, info) == html
    env.close()


def test_screenshots_show_the_page_and_are_equal_for_equal_states(store):
    env = WebShopBrowserEnv(**options(store, observation="screenshot", width=640, height=480))
    pictures = []
    for _ in range(2):
        first, info = env.reset(options={"goal": 0})
        second = env.step("search[acme red lamp]")[0]
        third = env.step("click[b000000001]")[0]
        fourth = env.step("click[blue]")[0]
        pictures.append((first, second, third, fourth))
    for picture in pictures[0]:
        assert env.observation_space.contains(picture)
        assert picture.std() > 5
    for here, there in zip(*pictures, strict=True):
        np.testing.assert_array_equal(here, there)
    assert all((here != there).any() for here, there in pairwise(pictures[0]))
    assert env.language.image(first, info) is first
    assert env.language.text(first, info) == ""
    env.close()


def test_a_copy_goes_on_where_the_original_stood(env):
    env.reset(options={"goal": 0})
    for _ in range(3):
        env.step(env.expert_action())
    twins = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    restored = WebShopBrowserEnv(**options(env.shop.catalog.folder))
    restored.restore_state(env.clone_state())
    twins.append(restored)
    while True:
        action = env.expert_action()
        step = env.step(action)
        for twin in twins:
            assert twin.step(action) == step
        if step[2]:
            break
    for twin in twins:
        twin.close()


def test_a_running_site_can_be_used(store):
    text = WebShopEnv(**options(store))
    site = LocalSite(create_app(text.shop, range(len(text.shop.goals)), secret_key="key"))
    env = WebShopBrowserEnv(**options(store, base_url=site.url + "/"))
    assert env.reset(options={"goal": 2}) == text.reset(options={"goal": 2})
    assert env.step("search[lamp]") == text.step("search[lamp]")
    site.close()
    with pytest.raises(EnvError, match="It must run"):
        env.step("click[back to search]")
    env.close()


def test_a_site_of_another_shop_is_refused(store):
    shop = WebShopEnv(**options(store)).shop
    site = LocalSite(create_app(shop, [5], secret_key="key"))
    env = WebShopBrowserEnv(**options(store, base_url=site.url))
    with pytest.raises(EnvError, match="in place of"):
        env.reset(options={"goal": 2})
    assert env.reset(options={"goal": 5})[1]["goal"] == 5
    env.close()
    site.close()


def test_a_browser_that_died_is_an_error_and_reset_starts_another(env):
    env.reset(options={"goal": 0})
    profile = env._browser.profile
    env._browser.driver.service.process.kill()
    with pytest.raises(EnvError, match="browser failed"):
        env.step("search[lamp]")
    assert not profile.exists()
    observation, _ = env.reset(options={"goal": 0})
    assert observation.startswith("WebShop")


def test_nothing_is_left_after_close_or_garbage_collection(store):
    for ending in ("close", "collect"):
        env = WebShopBrowserEnv(**options(store))
        env.reset(options={"goal": 0})
        process, profile = env._browser.driver.service.process, env._browser.profile
        assert profile.is_dir()
        if ending == "close":
            env.close()
            env.close()
        else:
            del env
            gc.collect()
        assert process.poll() is not None
        assert not profile.exists()


def test_a_browser_ends_with_its_process_even_if_that_is_killed():
    code = (
        "from istar_envs.webshop.chromium import Chromium; "
        "browser = Chromium(); print(browser.profile, flush=True); input()"
    )
    with running(code, stdin=subprocess.PIPE) as process:
        profile = process.stdout.readline().strip()
        assert users_of(profile)
        process.kill()
        end = time.monotonic() + 60
        while users_of(profile):
            assert time.monotonic() < end, "its processes live on"
            time.sleep(0.05)
    shutil.rmtree(profile)


def users_of(profile: str) -> list[str]:
    """Return the processes that were started with a profile."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"--user-data-dir={profile}".encode() in command.read_bytes():
                found.append(command.parent.name)
    return found


def test_steps_need_a_reset(store):
    env = WebShopBrowserEnv(**options(store))
    with pytest.raises(ResetNeeded):
        env.step("search[lamp]")
    env.close()


def test_rendering_gives_a_picture(store):
    env = WebShopBrowserEnv(**options(store, render_mode="rgb_array", width=400, height=300))
    env.reset(options={"goal": 0})
    assert env.render().shape == (300, 400, 3)
    env.close()


def test_what_is_missing_or_misspelt_is_an_error(store):
    with pytest.raises(MissingAsset, match="apt-get install chromium"):
        WebShopBrowserEnv(**options(store, binary="no-such-browser"))
    with pytest.raises(EnvError, match="screenshot"):
        WebShopBrowserEnv(**options(store, observation="screenshots"))
    with pytest.raises(MissingAsset, match="chromedriver"):
        find("chromedriver", ("no-such-chromedriver",))
    with pytest.raises(EnvError, match="does not start"):
        Chromium("/bin/false")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something that a page does by itself."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(None, 120, 0.02, ignored_exceptions=[WebDriverException]).until(lambda _: condition())


def test_a_person_buys_with_the_keyboard_alone(store):
    from selenium.webdriver import ActionChains, Keys

    env = WebShopBrowserEnv(**options(store))
    env.reset(options={"goal": 0})
    driver = env._browser.driver

    def active() -> str:
        return driver.execute_script(
            "const e = document.activeElement; return e.dataset.click || e.value || e.innerText"
        )

    def press(*keys: str) -> None:
        ActionChains(driver).send_keys(*keys).perform()

    def tab_to(text: str) -> None:
        for _ in range(40):
            press(Keys.TAB)
            if active() == text:
                return
        raise AssertionError(f"the Tab key never reaches {text!r}")

    press("acme red lamp", Keys.ENTER)
    wait_for(lambda: "/search?" in driver.current_url)
    tab_to("b000000001")
    press(Keys.ENTER)
    wait_for(lambda: "/item/" in driver.current_url)
    tab_to("red")
    press(Keys.SPACE, Keys.ENTER)
    wait_for(lambda: "You have chosen color: red" in driver.page_source)
    tab_to("buy now")
    press(Keys.ENTER)
    wait_for(lambda: driver.current_url.endswith("/done"))
    assert driver.find_element("css selector", "#reward pre").text
    env.close()


def test_the_shop_works_without_scripts(store):
    env = WebShopBrowserEnv(**options(store))
    env.reset(options={"goal": 0})
    browser = env._browser
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    site = env._url()
    browser.driver.get(f"{site}/search?q=acme+red+lamp")
    browser.driver.find_element("css selector", "[data-click=b000000001]").click()
    wait_for(lambda: "/item/" in browser.driver.current_url)
    browser.driver.find_element("css selector", "input[value=large]").click()
    browser.driver.find_element("css selector", ".apply").click()
    wait_for(lambda: "You have chosen size: large" in browser.driver.page_source)
    browser.driver.find_element("css selector", "input[value=blue]").click()
    browser.driver.find_element("css selector", ".buy").click()
    wait_for(lambda: browser.driver.current_url == f"{site}/done")
    env.close()


def test_the_text_of_a_page_does_not_depend_on_the_size_of_the_window(store):
    env = WebShopBrowserEnv(**options(store, width=320, height=480))
    text = WebShopEnv(**options(store))
    assert env.reset(options={"goal": 1})[0] == text.reset(options={"goal": 1})[0]
    for action in (
        "search[acme odd lamp]",
        "click[next >]",
        "click[< prev]",
        "click[b000000002]",
        "click[größe]",
    ):
        assert env.step(action)[0] == text.step(action)[0]
    env.close()
