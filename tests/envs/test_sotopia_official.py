"""Loading the published files: a made-up copy of their layout first, then the real ones when there."""

import re
from collections import Counter

import pytest
from sotopia_world import ANN, BO, agent_row, change, pair, scenario_row, write, write_world

from istar_envs.errors import ConfigError, MissingAsset
from istar_envs.sotopia.drafts import name_people, parse_draft
from istar_envs.sotopia.markup import parse_markup
from istar_envs.sotopia.official import load_official, read_id_lists
from istar_envs.sotopia.official_rows import AgentRow, ScenarioRow, read_rows
from istar_envs.sotopia.official_stakes import stated_stakes
from istar_envs.sotopia.records import AgeRange, Relationship, Scenario, Segment, plain
from istar_envs.sotopia.stakes import BargainStakes, DivisionStakes, Friend, FriendsStakes
from official_data import SOTOPIA, needs_sotopia


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("published"))


@pytest.fixture
def world(tmp_path):
    """A made-up folder that a test may spoil."""
    return write_world(tmp_path / "published")


@pytest.mark.parametrize(("subset", "num_settings"), [("all", 450), ("hard", 70), ("drafts", 2510)])
def test_every_set_of_a_whole_folder_loads(whole_world, subset, num_settings):
    settings = load_official(whole_world, subset=subset)
    assert len({setting.pk for setting in settings}) == num_settings


def test_a_setting_has_the_people_by_slot_and_the_scenario_of_its_pairing(whole_world):
    setting = load_official(whole_world, subset="all")[6]
    assert setting.pk == "CT001-1"
    assert [agent.pk for agent in setting.agents] == pair(1, 2)
    assert setting.scenario.relationship is Relationship.KNOWN_BY_NAME
    assert setting.scenario.goals[0] == plain("Buy flour (You are in a hurry)")
    assert setting.scenario.context == plain("Two people at a mill owned by Salt & Sons")
    assert setting.scenario.age_range == (AgeRange(18, 70), AgeRange(18, 70))
    assert setting.scenario.occupations is None


def test_the_hard_set_is_told_by_ids_not_by_rows(world):
    change(world / "env_agent_combos.json", lambda rows: rows.reverse())
    change(world / "sotopia_hard.json", lambda rows: rows.__setitem__(slice(None), range(380, 450)))
    settings = load_official(world, subset="hard")
    assert {setting.scenario.pk for setting in settings} == {f"T{i:03}" for i in range(14)}


SPOILT = {
    "envs.json": [
        (
            lambda rows: rows["T007"].update(relationship=9),
            r"envs.json, record 8 \(T007\), field relationship",
        ),
        (lambda rows: rows["T007"].update(agent_goals=["one"]), r"record 8 .*field agent_goals"),
        (lambda rows: rows["T007"].pop("scenario"), r"record 8 .*field scenario: Field required"),
        (lambda rows: rows["T007"].update(scenario="<b>"), r"record 8 .*field scenario: unknown tag <b>"),
        (lambda rows: rows["T007"].update(age_constraint="old"), r"field age_constraint: expected ages like"),
        (
            lambda rows: rows["T007"].update(pk="T1"),
            r"record 8 \(T007\), field pk: 'T1' is filed under 'T007'",
        ),
        (lambda rows: rows.pop("T007"), r"envs.json: 89 records, published were 90"),
        (lambda rows: rows["T007"].update(age_constraint="[(30, 70), (18, 70)]"), r"asks for ages 30 to 70"),
    ],
    "agents.json": [
        (lambda rows: rows["A03"].pop("secret"), r"agents.json, record 4 \(A03\), field secret"),
        (lambda rows: rows["A03"].update(age=-1), r"record 4 \(A03\), field age"),
        (lambda rows: rows.update(A40=agent_row(40)), r"agents.json: 41 records, published were 40"),
    ],
    "env_agent_combos.json": [
        (lambda rows: rows[1].update(pk="CT000-0"), r"record 2 \(CT000-0\), field pk: .* is there twice"),
        (lambda rows: rows[0].update(env_id="T9"), r"record CT000-0, field env_id: no scenario T9"),
        (lambda rows: rows[0].update(agent_ids=["A00", "Z"]), r"field agent_ids: no person Z"),
        (
            lambda rows: rows[0].update(agent_ids=["A00", "A21"]),
            r"the two are KNOWN_BY_NAME, .*needs STRANGER",
        ),
        (lambda rows: rows[0].update(agent_ids=["A00", "A01"]), r"the two are nothing to each other"),
        (lambda rows: rows[0].update(agent_ids=["A00", "A20", "A21"]), r"record 1 .*field agent_ids"),
        (lambda rows: rows[0].update(agent_ids=pair(0, 1)), r"scenario T000 has 4 different pairs"),
        (lambda rows: rows.pop(), r"449 records, published were 450"),
    ],
    "env_ids.json": [
        (lambda lists: lists["sotopia_env_id"].pop(), r"env_ids.json: scenario T089 is here or in the other"),
        (lambda lists: lists["sotopia_hard_env_id"].pop(), r"env_ids.json: 13 records, published were 14"),
        (
            lambda lists: lists["sotopia_env_id"].append("T000"),
            r"list sotopia_env_id: id T000 is there twice",
        ),
        (lambda lists: lists.pop("sotopia_env_id"), r"no list 'sotopia_env_id'"),
    ],
    "used_env.json": [
        (lambda lists: lists["SFT"].__setitem__(0, "T000"), r"none of the test set"),
        (lambda lists: lists.update(SFT=3), r"list SFT: expected a list of ids"),
    ],
    "sotopia_hard.json": [
        (lambda rows: rows.append(450), r"expected a list of positions from 0 to 449"),
        (lambda rows: rows.append(100), r"sotopia_hard.json: scenario T020 is here"),
    ],
}


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [(name, edit, message) for name, cases in SPOILT.items() for edit, message in cases],
)
def test_a_spoilt_file_is_named_with_record_and_field(world, name, edit, message):
    change(world / name, edit)
    with pytest.raises(ConfigError, match=message):
        load_official(world, subset="all")


def test_relationships_need_known_people(world):
    path = world / "relationship_profiles.jsonl"
    path.write_text(path.read_text().replace('"A20"', '"A77"', 1))
    with pytest.raises(ConfigError, match=r"jsonl, record 1 \(R000\): agent A77 is not in agents.json"):
        load_official(world, subset="all")


def test_a_missing_file_says_which_folder_is_wanted(world):
    (world / "agents.json").unlink()
    with pytest.raises(MissingAsset, match=r"not found: .*agents.json .*Give the folder"):
        load_official(world, subset="all")


def test_broken_json_is_named_with_its_line(world):
    path = world / "relationship_profiles.jsonl"
    path.write_text(path.read_text() + "\n{oops\n")
    with pytest.raises(ConfigError, match="jsonl, line 122: not JSON"):
        load_official(world, subset="all")
    write(world / "used_env.json", 3)
    with pytest.raises(ConfigError, match="expected lists of ids by name, got int"):
        read_id_lists(world / "used_env.json")
    with pytest.raises(ConfigError, match="expected a JSON object or list of records, got int"):
        read_rows(world / "used_env.json", AgentRow)


def test_a_pair_may_be_several_things_to_each_other(world):
    path = world / "relationship_profiles.jsonl"
    strangers, family = pair(0, 0), pair(5, 19)
    lines = path.read_text().splitlines()
    lines[119] = lines[0].replace("R000", "R519").replace('"0"', '"5"')
    path.write_text("\n".join(lines))

    def move(rows):
        for row in rows:
            row["agent_ids"] = strangers if row["agent_ids"] == family else row["agent_ids"]

    change(world / "env_agent_combos.json", move)
    played = Counter(
        setting.scenario.relationship
        for setting in load_official(world, subset="all")
        if [agent.pk for agent in setting.agents] == strangers
    )
    assert set(played) == {Relationship.STRANGER, Relationship.FAMILY}


@pytest.mark.parametrize("empty", [None, "nan", "[[], []]", "[[],[]]", "[['any'], ['any']]", ""])
def test_constraints_that_ask_for_nothing_are_none(empty):
    row = ScenarioRow.model_validate(scenario_row("S", 0, occupation_constraint=empty, age_constraint=None))
    scenario = row.record(parse_markup)
    assert scenario.occupations is None
    assert scenario.age_range is None


def test_an_occupation_that_is_asked_for_is_kept():
    row = ScenarioRow.model_validate(scenario_row("S", 0, occupation_constraint="[baker, baker]"))
    assert row.record(parse_markup).occupations == "[baker, baker]"


def test_an_age_range_must_not_end_before_it_begins():
    row = ScenarioRow.model_validate(scenario_row("S", 0, age_constraint="[(30, 20), (18, 70)]"))
    with pytest.raises(ValueError, match="ends before it begins"):
        row.record(parse_markup)


@pytest.mark.parametrize(
    ("draft", "clean"),
    [
        ("'Buy the lamp'", "Buy the lamp"),
        ('"Buy the lamp"', "Buy the lamp"),
        (' "Buy Bo\'s lamp"', "Buy Bo's lamp"),
        ("Agent2: 'Buy the lamp'", "Buy the lamp"),
        ("'Buy the lamp (<extra_info>you are late</extra_info>')", "Buy the lamp (you are late)"),
        ("'Buy it (<extra_info>late <strategy_hint>run</strategy_hint>)'", "Buy it (late run)"),
        ("Buy the lamp's shade", "Buy the lamp's shade"),
        ("Say 'hello'", "Say 'hello'"),
        ("'Wait', says Bo", "'Wait', says Bo"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_drafts_lose_stray_quotes_labels_and_open_tags(draft, clean):
    assert parse_draft(draft) == plain(clean)


def test_drafts_name_the_people():
    context = (Segment("Agent1 meets agent2; agents wave. "), Segment("Agent2 lies.", "environment"))
    goals = (plain("You are Agent1."), plain("Ask Agent1's price"))
    scenario = name_people(Scenario("S", "c", "s", context, goals, Relationship.FRIEND), (ANN, BO))
    assert scenario.context == (
        Segment("Ann Quill meets Bo Tarn; agents wave. "),
        Segment("Bo Tarn lies.", "environment"),
    )
    assert scenario.goals == (plain("You are Ann Quill."), plain("Ask Ann Quill's price"))


def _scenario(source, context, first, second):
    goals = (parse_markup(first), parse_markup(second))
    return Scenario("S", "c", source, parse_markup(context), goals, Relationship.FRIEND)


def test_points_are_read_from_counts_and_goals():
    scenario = _scenario(
        "deal-or-no-deal",
        "They share 2 lamps and 1 rug.",
        "For you, a lamp is worth 4 points, and the rug is 1 point",
        "1 lamp = 2 points, rugs give you 12 points each",
    )
    assert stated_stakes(scenario) == DivisionStakes((("lamp", 2), ("rug", 1)), ((4, 1), (2, 12)))


def test_prices_are_read_and_reserves_follow_from_the_list_price():
    scenario = _scenario(
        "craigslist_bargains",
        "One person is offering a Red Kayak for $1,200.00, which leaks.",
        "You are the buyer and your target price is $900.",
        "As the seller, your target price is set at $1000.50.",
    )
    assert stated_stakes(scenario) == BargainStakes("Red Kayak", 1200.0, 1, (900.0, 1000.5), (1200.0, 801.0))


def test_the_first_seat_may_sell():
    scenario = _scenario(
        "craigslist_bargains", "He is selling a kayak for $100.", "The seller: $40.", "The buyer: $90."
    )
    assert stated_stakes(scenario) == BargainStakes("kayak", 100.0, 0, (40.0, 90.0), (0.0, 100.0))


def test_friends_are_read_with_the_answer_that_only_the_judge_reads():
    kim = Friend("Kim", (("Hobby", "Chess"), ("School", "Elm, Inc.")))
    go = (("Hobby", "Go"),)
    assert stated_stakes(_friends_scenario("Kim")) == FriendsStakes(
        ((kim, Friend("Lou", go)), (Friend("Max", go), kim)), "Kim"
    )


def _friends_scenario(answer):
    return _scenario(
        "mutual_friends",
        f'A party. <p viewer="environment">They have 1 common friends: {answer}.</p>',
        "You know the following friends: \n Kim: Hobby: Chess  School: Elm, Inc. \n Lou: Hobby: Go  \n",
        "You know the following friends \n Max: Hobby: Go  \n Kim: Hobby: Chess  School: Elm, Inc. \n",
    )


@pytest.mark.parametrize(
    "scenario",
    [
        _scenario("normbank", "They share 2 lamps.", "a lamp is 4 points", "a lamp is 2 points"),
        _scenario("deal-or-no-deal", "They share 2 lamps.", "a lamp is 4 points", "you like lamps"),
        _scenario(
            "deal-or-no-deal", "They share 2 lamps.", "a lamp, or 3, is 4 points", "a lamp is 2 points"
        ),
        _scenario("deal-or-no-deal", "They share lamps.", "a lamp is 4 points", "a lamp is 4 points"),
        _scenario("craigslist_bargains", "He is selling a kayak for $9.", "The buyer: $4.", "The seller."),
        _scenario("craigslist_bargains", "He is selling a kayak for $9.", "The buyer: $4.", "The buyer: $4."),
        _scenario("craigslist_bargains", "A kayak: $9.", "The buyer: $4.", "The seller: $4."),
        _friends_scenario("Lou"),
    ],
)
def test_stakes_that_are_not_stated_are_not_guessed(scenario):
    assert stated_stakes(scenario) is None


def _texts(setting):
    return [setting.scenario.context, *setting.scenario.goals]


@pytest.fixture(scope="module")
def published():
    """The real test set."""
    return load_official(SOTOPIA, subset="all")


@needs_sotopia
def test_published_test_set_has_the_published_counts(published):
    scenarios = {setting.scenario.pk: setting.scenario for setting in published}
    assert len(published) == 450
    assert len({agent.pk for setting in published for agent in setting.agents}) == 40
    assert set(Counter(setting.scenario.pk for setting in published).values()) == {5}
    assert Counter(scenario.relationship.value for scenario in scenarios.values()) == {
        0: 25,
        1: 4,
        2: 10,
        3: 46,
        4: 5,
    }
    assert len(scenarios) == 90


@needs_sotopia
def test_published_hard_set_is_fourteen_scenarios_and_seventy_settings():
    hard = load_official(SOTOPIA, subset="hard")
    assert len(hard) == 70
    assert len({setting.scenario.pk for setting in hard}) == 14


@needs_sotopia
def test_published_texts_lose_their_tags_and_keep_their_ampersands(published):
    scenarios = {setting.scenario.pk: setting.scenario for setting in published}
    texts = [text for one in scenarios.values() for text in (one.context, *one.goals)]
    joined = ["".join(piece.text for piece in text) for text in texts]
    assert sum("&" in text for text in joined) == 12
    assert not any(re.search(r"</?\w+[^>]*>", text) for text in joined)
    assert sum(piece.viewer == "environment" for text in texts for piece in text) == 10


@needs_sotopia
def test_thirty_published_scenarios_state_their_stakes(published):
    scenarios = {setting.scenario.pk: setting.scenario for setting in published}.values()
    stakes = Counter(type(scenario.stakes) for scenario in scenarios)
    assert stakes == {type(None): 60, DivisionStakes: 10, BargainStakes: 10, FriendsStakes: 10}
    bargains = [one.stakes for one in scenarios if isinstance(one.stakes, BargainStakes)]
    assert all(one.reserves[one.seller_seat] < one.list_price for one in bargains)


@needs_sotopia
def test_published_drafts_are_clean():
    drafts = load_official(SOTOPIA, subset="drafts")
    assert len(drafts) == 2510
    assert len({setting.scenario.pk for setting in drafts}) == 251
    texts = ["".join(piece.text for piece in text) for setting in drafts for text in _texts(setting)]
    assert not any(re.search(r"[Aa]gent ?[12]|</?\w+>", text) for text in texts)
    assert not any(text != text.strip() or text[0] in "\"'" or text[-1] in "\"'" for text in texts)


@needs_sotopia
def test_the_draft_rules_change_as_many_texts_as_were_counted():
    rows = read_rows(SOTOPIA / "pi-drafts/EnvironmentProfile.json", ScenarioRow).values()
    assert len(rows) == 386
    goals = [goal for row in rows for goal in row.agent_goals]
    unbalanced = [goal for goal in goals if goal.count("<extra_info>") != goal.count("</extra_info>")]
    assert len(unbalanced) == 36
    with_numbers = [
        row for row in rows if re.search("(?i)agent[12]", row.scenario + "".join(row.agent_goals))
    ]
    assert len(with_numbers) == 367


@needs_sotopia
def test_published_training_ids_are_apart_from_the_test_set(published):
    lists = read_id_lists(SOTOPIA / "used_env.json")
    train = {pk for name, pks in lists.items() if not name.startswith("sotopia") for pk in pks}
    assert len(train) == 410
    assert not train & {setting.scenario.pk for setting in published}
