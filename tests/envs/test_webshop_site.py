"""The shop as a web site: the same pages and rules, a signed cookie that holds the visit, no way in."""

import hashlib
import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from webshop_shop import LAMP, ODD, PRODUCTS, make_option, make_product, small_shop

from istar_envs.errors import EnvError
from istar_envs.webshop.labels import clean
from istar_envs.webshop.pages import build_page
from istar_envs.webshop.render import to_text, url_of
from istar_envs.webshop.session import Action, PageKind, State, admissible, advance, parse_action, purchase_of
from istar_envs.webshop.site.app import create_app, serve
from istar_envs.webshop.site.html import to_html, visible_text
from istar_envs.webshop.site.logs import SessionLog
from istar_envs.webshop.ways import action_between, follow, way_to

HOSTILE = make_product(
    "B00000EVIL",
    '<script>alert("x")</script> & lamp \' {{ 7 * 7 }}',
    description="</p><img src=x onerror=alert(1)> [SEP] &amp;",
    bullets=("<b>bold</b>", "a\nb", "-->"),
    options=(
        make_option('na"me><', "<i>", "javascript:alert(1)", "a&b", "tom's"),
        make_option("visit", "//evil.example", "?q=1#x"),
    ),
)
LAMP_URL = "/item/B000000001?q=lamp&page=1"


class Clickables(HTMLParser):
    """What a page offers: attributes of every element that an action can mean, and every start tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(html)
        self.by_click = {}
        for _, attrs in self.tags:
            if "data-click" in attrs:
                self.by_click.setdefault(attrs["data-click"], attrs)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def find(self, tag: str, **wanted: str) -> list[dict]:
        return [a for t, a in self.tags if t == tag and all(a.get(k) == v for k, v in wanted.items())]


def make_shop(**changes):
    shop = small_shop(**changes)
    shop.catalog.fingerprint = "hand-made"
    return shop


def make_client(shop=None, **options):
    shop = shop or make_shop()
    app = create_app(shop, range(len(shop.goals)), secret_key="key", **options)
    app.testing = True
    return app.test_client()


@pytest.fixture
def client():
    client = make_client()
    client.get("/start?goal=0")
    return client


def press(client, html: str, action: Action):
    """Do what a person does with a page, without scripts; return the page that follows."""
    if action.verb == "search":
        return client.get("/search", query_string={"q": action.argument}, follow_redirects=True)
    attrs = Clickables(html).by_click[action.argument]
    if "href" in attrs:
        return client.get(attrs["href"], follow_redirects=True)
    if "formaction" in attrs:
        return client.post(attrs["formaction"], follow_redirects=True)
    return client.post(attrs["data-url"], data={attrs["name"]: attrs["value"]}, follow_redirects=True)


def random_walk(shop, rng: random.Random) -> Iterator[tuple[Action, State]]:
    state = State()
    while state.kind is not PageKind.DONE:
        actions = [parse_action(text) for text in admissible(shop, state)]
        action = rng.choice(actions)
        if action.argument == "buy now" and rng.random() < 0.7:
            continue
        if action.verb == "search":
            action = Action(
                "search", rng.choice(("lamp", "acme odd lamp", "nothing such", "evil <script> größe 灯"))
            )
        state = advance(shop, state, action)
        yield action, state


def all_states(shop, kinds=PageKind) -> list[State]:
    """Every page of a few searches, with every option of every product chosen once."""
    states = [State()]
    for query in ("lamp", "thing", "nothing"):
        for number in (1, 2, 3):
            results = State(PageKind.RESULTS, query, number)
            states.append(results)
            for row in shop.listing(query, number).rows:
                item = State(PageKind.ITEM, query, number, row.asin)
                states.append(item)
                for choice in shop.item(row.asin).choices.values():
                    states.append(State(PageKind.ITEM, query, number, row.asin, (choice,)))
                for kind in ("description", "features", "reviews", "attributes", "done"):
                    states.append(State(PageKind(kind), query, number, row.asin))
    return [state for state in states if state.kind in kinds]


@pytest.mark.parametrize("scoring", ["compat", "strict"])
def test_html_shows_exactly_the_text_of_every_page(scoring):
    shop = make_shop(scoring=scoring, products=(HOSTILE, *PRODUCTS), show_attributes=True)
    goal = shop.goals.goal(1)
    states = all_states(shop)
    assert len(states) > 150
    for state in states:
        score = shop.judge(purchase_of(shop, state), goal) if state.kind is PageKind.DONE else None
        page = build_page(shop, goal, state, score)
        assert visible_text(to_html(page, code="CODE")) == to_text(page, show_chosen=True), state


def test_visible_text_counts_empty_segments_but_no_layout():
    html = "<head><title>t</title></head><p> a </p>\n<!-- c --><p> </p><p>b<br>c</p><script>x</script>"
    assert visible_text(html) == "a [SEP]  [SEP] b [SEP] c"


@pytest.mark.parametrize("scoring", ["compat", "strict"])
def test_following_links_and_forms_is_the_same_session(scoring):
    shop = make_shop(scoring=scoring, products=(HOSTILE, *PRODUCTS), show_attributes=True)
    client = make_client(shop)
    rng = random.Random(0)
    for goal in range(12):
        response = client.get(f"/start?goal={goal}", follow_redirects=True)
        for action, state in random_walk(shop, rng):
            response = press(client, response.text, action)
            score = None
            if state.kind is PageKind.DONE:
                score = shop.judge(purchase_of(shop, state), shop.goals.goal(goal))
            page = build_page(shop, shop.goals.goal(goal), state, score)
            assert response.status_code == 200
            assert visible_text(response.text) == to_text(page), (action, state)
            if state.kind is not PageKind.SEARCH:
                listed = [parse_action(text).argument for text in admissible(shop, state)]
                assert set(Clickables(response.text).by_click) == set(listed)


def test_pages_have_the_published_hooks(client):
    search = Clickables(client.get("/").text)
    assert search.find("input", id="search_input")
    assert search.find("div", id="instruction-text")
    assert search.find("h4")
    results = Clickables(client.get("/search?q=lamp").text)
    links = [attrs for _, attrs in results.tags if attrs.get("class") == "product-link"]
    assert len(links) == 10
    item = client.get(LAMP_URL).text
    radios = Clickables(item).find("input", type="radio")
    assert [(radio["name"], radio["value"]) for radio in radios][:2] == [("color", "red"), ("color", "blue")]
    assert all(radio["data-url"] == LAMP_URL for radio in radios)
    assert len(re.findall(r'<input type="radio" id="(.+?)"[^>]*>\s*<label for="\1">', item)) == len(radios)
    assert Clickables(item).find("img", id="product-image")
    assert all("btn" in attrs["class"].split() for attrs in Clickables(item).find("a"))
    done = client.post("/buy/B000000001?q=lamp&page=1", follow_redirects=True).text
    assert re.search(r'<div id="reward">\s*<pre>([\d.]+)</pre>', done)


def test_chosen_options_stay_on_the_pages_of_a_product_and_go_when_it_is_left(client):
    client.get("/search?q=lamp")
    client.get(LAMP_URL)
    client.post(LAMP_URL, data={"color": "red"})
    client.get("/item/B000000001/features?q=lamp&page=1")
    assert "You have chosen color: red" in client.get(LAMP_URL).text
    client.post(LAMP_URL, data={"size": "large"})
    both = client.get(LAMP_URL).text
    assert "You have chosen color: red" in both
    assert "You have chosen size: large" in both
    client.get("/search?q=lamp&page=1")
    assert "You have chosen" not in client.get(LAMP_URL).text


def test_a_chosen_option_swaps_the_picture(client):
    assert 'src="/picture/B000000001.svg"' in client.get(LAMP_URL).text
    client.post(LAMP_URL, data={"color": "red"})
    assert 'src="/picture/B000000001.svg?value=red"' in client.get(LAMP_URL).text
    client.post(LAMP_URL, data={"size": "large"})
    assert 'src="/picture/B000000001.svg?value=red"' in client.get(LAMP_URL).text
    picture = client.get("/picture/B000000001.svg?value=red")
    assert (picture.status_code, picture.mimetype) == (200, "image/svg+xml")
    assert picture.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert picture.text != client.get("/picture/B000000001.svg?value=blue").text
    assert client.get("/picture/B000000001.svg?value=unheard").status_code == 404
    assert client.get("/picture/B0.svg").status_code == 404


def test_buying_takes_what_is_ticked_and_pays_the_score_of_the_purchase():
    shop = make_shop()
    client = make_client(shop)
    client.get("/start?goal=0")
    client.get(LAMP_URL)
    done = client.post("/buy/B000000001?q=lamp&page=1", data={"color": "red", "size": "small"})
    assert (done.status_code, done.headers["Location"]) == (303, "/done")
    state = State(PageKind.DONE, "lamp", 1, "B000000001", (("color", "red"), ("size", "small")))
    total = shop.judge(purchase_of(shop, state), shop.goals.goal(0)).total
    assert f"<pre>{total}</pre>" in client.get("/done").text


def test_after_the_purchase_everything_leads_to_its_score_until_a_new_task(client):
    client.get(LAMP_URL)
    client.post("/buy/B000000001?q=lamp&page=1")
    before = client.get("/done").text
    for path in ("/", "/search?q=lamp", LAMP_URL, "/item/B000000001/features?q=lamp"):
        assert client.get(path).headers["Location"] == "/done"
    for path in (LAMP_URL, "/buy/B000000001?q=lamp&page=1", "/buy/B000000002?q=lamp&page=1"):
        assert client.post(path, data={"color": "red"}).headers["Location"] == "/done"
    assert client.get("/done").text == before
    assert client.post("/start").headers["Location"] == "/"
    assert client.get("/").status_code == 200
    assert client.get("/done").headers["Location"] == "/"


def test_an_address_shows_nothing_that_clicks_could_not_reach(client):
    for path in (
        "/item/B000000001?q=chair",
        "/item/B000000001?q=lamp&page=2",
        "/item/B0?q=lamp",
        "/item/B000000001/attributes?q=lamp",
        "/item/B000000001/secrets?q=lamp",
        "/search?q=lamp&page=4",
        "/search?q=lamp&page=0",
        "/search?q=lamp&page=-1",
        "/search?q=lamp&page=99999999999",
        "/search?q=lamp&page=²",
        "/no/such/page",
    ):
        fault = client.get(path)
        assert fault.status_code == 404, path
        assert 'href="/"' in fault.text
    assert client.post("/buy/B000000001?q=chair").status_code == 404


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("a" * 1001, "the query has 1001 characters; at most 1000 are allowed"),
        ("", "empty"),
        ("  ", "empty"),
        ("<r> lamp", "a query cannot begin with &lt;r&gt;"),
        ("two\nlines", "line breaks and control characters"),
    ],
)
def test_queries_that_the_shop_refuses_are_explained(client, query, reason):
    answer = client.get("/search", query_string={"q": query})
    assert answer.status_code == 400
    assert reason in answer.text


def test_the_longest_query_fits_and_the_cookie_stays_small(client):
    query = "".join(chr(0x4E00 + random.Random(i).randrange(20_000)) for i in range(1000))
    answer = client.get("/search", query_string={"q": query})
    assert answer.status_code == 200
    client.get(LAMP_URL)
    answer = client.post(LAMP_URL, data={"color": "red", "size": "large"})
    cookie = answer.headers["Set-Cookie"]
    assert len(cookie) < 800
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_products_and_queries_are_shown_as_text_never_as_markup():
    shop = make_shop(products=(HOSTILE,))
    client = make_client(shop)
    client.get("/start?goal=0")
    query = 'lamp "><script>alert(1)</script>'
    client.get("/search", query_string={"q": query})
    item = f"/item/{HOSTILE.asin}"
    for path in ("/", "/search", item, f"{item}/description", f"{item}/features", "/search/<script>"):
        page = client.get(path, query_string={"q": query})
        assert page.status_code == (404 if path == "/search/<script>" else 200)
        offers = Clickables(page.text)
        assert [attrs["src"] for attrs in offers.find("script")] == ["/static/shop.js"], path
        assert not offers.find("b") + offers.find("i"), path
        assert not any(name.startswith("on") for _, attrs in offers.tags for name in attrs), path
        assert "49" not in page.text
        assert not any(
            (attrs.get("href") or "/").startswith(("//", "javascript:")) for _, attrs in offers.tags
        )
    client.get("/search?q=lamp")
    client.post(f"{item}?q=lamp", data={'na"me><': "javascript:alert(1)", "visit": "//evil.example"})
    page = client.get(f"{item}?q=lamp")
    assert "You have chosen visit: //evil.example" in page.text
    assert page.text.count("<script") == 1


@pytest.mark.parametrize(
    "path",
    ["//evil.example/", "/\\evil.example", "/http://evil.example", "/start?next=//evil.example", "/start"],
)
def test_no_redirect_leaves_the_site(client, path):
    answer = client.get(path, headers={"Host": "evil.example"})
    location = answer.headers.get("Location", "/")
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert "evil.example" not in location.partition("evil.example/")[0]


@pytest.mark.parametrize(
    "path", ["/", "/search?q=lamp", "/nothing", "/static/shop.css", "/healthz", "/start"]
)
def test_every_answer_has_the_security_headers(client, path):
    answer = client.get(path)
    answer.close()
    headers = answer.headers
    policy = headers["Content-Security-Policy"]
    for rule in ("default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


def test_pages_have_no_inline_styles_or_scripts(client):
    for path in ("/", "/search?q=lamp", LAMP_URL):
        for tag, attrs in Clickables(client.get(path).text).tags:
            assert tag != "style"
            assert "style" not in attrs


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 303),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_forms_of_other_sites_are_refused(client, headers, status):
    client.get(LAMP_URL)
    assert client.post("/buy/B000000001?q=lamp&page=1", headers=headers).status_code == status
    assert client.get("/done").status_code == (200 if status == 303 else 303)


def test_a_damaged_forged_or_foreign_cookie_starts_afresh():
    shop = make_shop()
    client = make_client(shop)
    client.get("/start?goal=3")
    client.get("/search?q=lamp")
    good = client.get_cookie("istar_webshop").value
    other = make_client(make_shop(scoring="strict"))
    stranger = create_app(shop, [3], secret_key="another key").test_client()
    stranger.get("/start?goal=3")
    for value in ("", "x", good[:-2], good[1:], "é" * 50, stranger.get_cookie("istar_webshop").value):
        client.set_cookie("istar_webshop", value)
        answer = client.get("/search?q=lamp")
        assert (answer.status_code, answer.headers["Location"]) == (303, "/"), value
        assert client.get("/").status_code == 200
    other.set_cookie("istar_webshop", good)
    assert other.get("/search?q=lamp").headers["Location"] == "/"


def test_a_visitor_without_a_cookie_gets_a_goal_of_the_list_first():
    shop = make_shop()
    for _ in range(5):
        client = create_app(shop, [4], secret_key="key").test_client()
        assert client.get(LAMP_URL).headers["Location"] == "/"
        assert client.post(LAMP_URL).headers["Location"] == "/"
        assert shop.goals.goal(4).text in client.get("/").text


@pytest.mark.parametrize("path", ["/start?goal=2", "/start?session=fixed_2", "/start?session=mine&goal=2"])
def test_a_goal_can_be_chosen(path):
    shop = make_shop()
    client = make_client(shop)
    client.get("/start?goal=1")
    assert shop.goals.goal(2).text in client.get(path, follow_redirects=True).text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/start?goal=99", 404),
        ("/start?goal=-1", 404),
        ("/start?goal=two", 404),
        ("/start?goal=" + "1" * 5000, 404),
        ("/start?session=fixed_x", 404),
        ("/start?session=../../etc", 400),
        ("/start?session=" + "a" * 65, 400),
    ],
)
def test_goals_and_session_names_that_cannot_be_are_explained(client, path, status):
    assert client.get(path).status_code == status


def test_the_completion_code_is_made_from_the_session(client):
    client.get("/start?session=fixed_2")
    client.get(LAMP_URL)
    done = client.post("/buy/B000000001?q=lamp", follow_redirects=True).text
    assert f'value="{hashlib.sha1(b"fixed_2").hexdigest()[:10].upper()}"' in done


def test_an_option_that_the_product_does_not_have_changes_nothing(client):
    client.post(LAMP_URL, data={"color": "purple", "height": "tall"})
    assert "You have chosen" not in client.get(LAMP_URL).text


def test_logs_hold_actions_that_play_the_visit_again(tmp_path):
    shop = make_shop()
    client = make_client(shop, log_folder=tmp_path / "logs")
    html = client.get("/start?session=fixed_0", follow_redirects=True).text
    actions = [
        "search[lamp]",
        "click[next >]",
        "click[< prev]",
        "click[b000000001]",
        "click[color: red]" if "color: red" in shop.item(LAMP.asin).choices else "click[red]",
        "click[features]",
        "click[< prev]",
        "click[buy now]",
    ]
    for action in actions:
        html = press(client, html, parse_action(action)).text
    client.get("/done")
    (file,) = (tmp_path / "logs").iterdir()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["action"] for line in lines] == actions
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert {line["goal"] for line in lines} == {0}
    assert {line["session"] for line in lines} == {"fixed_0"}
    assert lines[3]["url"] == LAMP_URL
    assert [line["page"] for line in lines][-1] == "done"
    assert lines[-1]["reward"] == float(re.search(r"<pre>(.+?)</pre>", html)[1])
    state = State()
    for line in lines:
        state = advance(shop, state, parse_action(line["action"]))
    assert shop.judge(purchase_of(shop, state), shop.goals.goal(0)).total == lines[-1]["reward"]


def test_logs_tell_jumps_and_refused_searches_and_not_reloads(tmp_path):
    client = make_client(log_folder=tmp_path)
    client.get("/start?goal=0")
    for path in (
        "/",
        "/search?q=lamp",
        "/search?q=lamp",
        LAMP_URL,
        "/search?q=<r>",
        "/item/B000000002?q=lamp&page=1",
    ):
        client.get(path)
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(line["action"], line["valid"]) for line in lines] == [
        ("search[lamp]", True),
        ("click[b000000001]", True),
        ("search[<r>]", False),
        ("visit[/item/B000000002?q=lamp&page=1]", True),
    ]


def test_logs_take_lines_from_many_threads_and_stay_in_their_folder(tmp_path):
    log = SessionLog(tmp_path / "logs")
    name = "../../" + "x" * 20

    def write(thread: int) -> None:
        for i in range(50):
            log.write(name, {"thread": thread, "i": i, "text": "é\ud800" * 200})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    (file,) = (tmp_path / "logs").iterdir()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted((line["thread"], line["i"]) for line in lines) == [
        (t, i) for t in range(8) for i in range(50)
    ]


def test_a_log_folder_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvError, match="log_folder"):
        SessionLog(tmp_path / "file" / "logs")


def test_the_shop_is_loaded_before_the_first_request():
    shop = make_shop()
    asked = []
    search = shop.engine.search
    shop.engine.search = lambda query, k=50: asked.append(query) or search(query, k)
    create_app(shop, [0], secret_key="key")
    assert asked


def test_health_says_what_is_there(client):
    answer = client.get("/healthz")
    assert answer.json == {"status": "ok", "products": len(PRODUCTS), "goals": len(PRODUCTS)}
    assert "Set-Cookie" not in answer.headers


def test_wrong_methods_and_large_forms_are_refused(client):
    assert client.post("/search?q=lamp").status_code == 405
    assert client.get("/buy/B000000001?q=lamp").status_code == 405
    assert client.post(LAMP_URL, data={"color": "x" * 100_000}).status_code == 413


def test_text_that_is_no_unicode_does_not_break_a_page():
    shop = make_shop(products=(make_product("B000000009", "half \ud800 lamp"),))
    client = make_client(shop)
    client.get("/start?goal=0")
    assert client.get("/search?q=lamp").status_code == 200


@pytest.mark.parametrize(
    ("goals", "key", "word"),
    [([], "k", "empty"), ([99], "k", "numbered"), ([-1], "k", "numbered"), ([0], "", "secret_key")],
)
def test_a_site_that_cannot_be_is_an_error(goals, key, word):
    with pytest.raises(EnvError, match=word):
        create_app(make_shop(), goals, secret_key=key)


def test_serving_on_a_taken_port_is_an_error():
    app = create_app(make_shop(), [0], secret_key="key")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EnvError, match="Choose another port"):
            serve(app, port=taken.getsockname()[1])


def test_the_way_to_a_page_leads_there():
    shop = make_shop(show_attributes=True)
    for state in all_states(shop):
        reached = follow(shop, way_to(shop, state))
        if state.kind in (PageKind.RESULTS, PageKind.SEARCH):
            assert reached == state or not shop.listing(state.query, state.number).rows
        else:
            assert (reached.kind, reached.asin, reached.number) == (state.kind, state.asin, state.number)
            assert [clean(value) for _, value in reached.chosen] == [
                clean(value) for _, value in state.chosen
            ]


def test_the_action_between_two_pages_is_found_or_there_is_none():
    shop = make_shop()
    results, item = State(PageKind.RESULTS, "lamp"), State(PageKind.ITEM, "lamp", 1, LAMP.asin)
    assert str(action_between(shop, State(), results)) == "search[lamp]"
    assert str(action_between(shop, results, item)) == "click[b000000001]"
    assert action_between(shop, State(), item) is None
    assert action_between(shop, State(), State(PageKind.RESULTS, "lamp", 2)) is None
    assert action_between(shop, item, State(PageKind.ITEM, "lamp", 1, ODD.asin)) is None
    assert url_of(item) == LAMP_URL
