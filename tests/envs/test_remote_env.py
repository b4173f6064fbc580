"""`istar/Remote-v0` against a server in a process of its own: everything as if it were here."""

import copy
import pickle
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from faulty_proxy import faulty_proxy
from file_server import file_server
from remote_server import serving

import istar_envs
from free_ports import refusing_address
from istar_envs.agent import Conversation
from istar_envs.conformance import CHECKS
from istar_envs.conformance.play import canonical, play, trace
from istar_envs.errors import ConfigError, EnvError, ResetNeeded, ServerUnreachable, SessionLost, UnknownEnv
from istar_envs.remote.env import RemoteEnv

SOKOBAN, VISUAL, SOTOPIA, SHOP = (
    "istar/Sokoban-v0",
    "istar/VisualSokoban-v0",
    "istar/Sotopia-v0",
    "istar/WebShop-v1",
)
BROWSER = "istar/WebShopBrowser-v0"
HAS_BROWSER = all(map(shutil.which, ("chromium", "chromedriver")))
needs_browser = pytest.mark.skipif(not HAS_BROWSER, reason="chromium and chromedriver are not on the PATH")
SERVED = [env_id for env_id in istar_envs.env_ids() if env_id not in ("istar/Remote-v0", BROWSER)]
ENV_IDS = [
    pytest.param(env_id, marks=[pytest.mark.slow, needs_browser] if env_id == BROWSER else [])
    for env_id in istar_envs.env_ids()
    if env_id != "istar/Remote-v0"
]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server of everything but the browser."""
    with serving(tmp_path_factory.mktemp("server") / "log", *SERVED, "--rate", "1000000") as server:
        yield server.url


@pytest.fixture
def urls(url, tmp_path):
    """Servers by environment: the browser has one for each test, which ends what the checks leave open."""
    with ExitStack() as stack:

        def find(env_id):
            if env_id != BROWSER:
                return url
            return stack.enter_context(serving(tmp_path / "log", env_id, "--max-browsers", "12")).url

        yield find


@pytest.fixture
def make(urls):
    """Return a function that makes remote environments, which are closed at the end."""
    envs = []

    def make_env(env=SOKOBAN, **options):
        envs.append(istar_envs.make("istar/Remote-v0", url=urls(env), env=env, **options))
        return envs[-1]

    yield make_env
    for env in envs:
        env.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_environment_conforms_over_the_wire(urls, env_id, check):
    check("istar/Remote-v0", url=urls(env_id), env=env_id)


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_remote_episodes_equal_local_ones(make, env_id):
    local = istar_envs.make(env_id, disable_env_checker=True)
    remote = make(env_id)
    for seed in range(3):
        assert trace(remote, seed) == trace(local, seed)
    assert canonical(remote.reset()) == canonical(local.reset())
    local.close()


def test_types_and_key_order_are_those_of_a_local_step(make):
    for env_id, options in ((SOKOBAN, {}), (SHOP, {"observation": "structured"}), (SOTOPIA, {})):
        local, remote = istar_envs.make(env_id, **options), make(env_id, options=options)
        assert repr(remote.reset(seed=1)) == repr(local.reset(seed=1))
        action = local.unwrapped.expert_action()
        assert repr(remote.step(action)) == repr(local.step(action))


def test_a_language_model_plays_it_and_the_record_is_the_local_one(make):
    records = []
    for env in (make(SOTOPIA, options={"max_turns": 6}), istar_envs.make(SOTOPIA, max_turns=6)):
        game = Conversation(env, template="bare-v1")
        game.reset(seed=4)
        game.respond("<action>say: Hello.</action>")
        game.respond("no action at all")
        game.truncate()
        records.append(game.episode())
    assert records[0] == records[1]
    assert records[0].env_id == SOTOPIA


def test_only_what_the_environment_offers_is_there(make):
    assert hasattr(make(SOTOPIA).unwrapped, "truncate")
    board = make(SOKOBAN).unwrapped
    assert not hasattr(board, "truncate")
    assert board.task_ids() is None
    ids, own = make(SHOP).unwrapped.task_ids(), istar_envs.make(SHOP).unwrapped.task_ids()
    assert len(ids) == len(own)
    assert (ids[0], ids[-1], ids[1:4]) == (own[0], own[-1], own[1:4])


def test_task_ids_render_modes_and_options_reach_the_environment(make):
    local = istar_envs.make(VISUAL, split="test", tile_size=8, render_mode="rgb_array")
    remote = make(VISUAL, options={"split": "test", "tile_size": 8}, render_mode="rgb_array")
    task = remote.unwrapped.task_ids()[5]
    assert canonical(remote.reset(options={"task_id": task})) == canonical(
        local.reset(options={"task_id": task})
    )
    assert np.array_equal(remote.render(), local.render())
    assert remote.observation_space == local.observation_space


@pytest.mark.parametrize("pictures", ["png", "raw"])
def test_pictures_are_equal_however_they_travel(make, pictures):
    remote, local = make(VISUAL, pictures=pictures), istar_envs.make(VISUAL)
    picture = remote.reset(seed=3)[0]
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, local.reset(seed=3)[0])


def test_copies_and_snapshots_have_sessions_of_their_own(make):
    env = make()
    env.reset(seed=0)
    saved = pickle.dumps(env)
    snapshot = env.unwrapped.clone_state()
    rest = [canonical(result) for result in play(copy.deepcopy(env))]
    for twin in (pickle.loads(saved), pickle.loads(saved), copy.deepcopy(env)):
        assert [canonical(result) for result in play(twin)] == rest
        twin.close()
    list(play(env))
    for _ in range(2):
        assert env.unwrapped.restore_state(snapshot)[1]["steps"] == 0
        assert [canonical(result) for result in play(env)] == rest
    snapshot.close()
    with pytest.raises(SessionLost):
        env.unwrapped.restore_state(snapshot)


def test_a_closed_environment_can_be_copied_and_reset_again(make):
    env = make()
    env.close()
    with pytest.raises(ResetNeeded, match="there is no session"):
        env.step(0)
    twin = pickle.loads(pickle.dumps(env))
    assert canonical(twin.reset(seed=1)) == canonical(env.reset(seed=1))
    twin.close()


def test_errors_of_the_environment_come_through(make):
    env = make()
    env.reset(seed=0)
    for action, hint in (
        (9, "Use 0 up"),
        (object(), "cannot be sent"),
        (np.float64(0.5), "outside Discrete"),
    ):
        with pytest.raises(EnvError, match=hint):
            env.step(action)
    assert env.step(np.int64(0))[-1]["steps"] == 1
    with pytest.raises(EnvError, match="unknown option"):
        env.reset(options={"levle_id": "x"})
    with pytest.raises(EnvError, match=r"options: .*cannot be sent"):
        env.reset(options={"level": object()})


def test_numbers_of_numpy_may_be_options_of_a_reset(make):
    env = make(SHOP)
    assert env.reset(options={"goal": np.int64(3)})[1]["goal"] == 3


def test_wrong_ids_options_and_addresses_are_told(make, url):
    with pytest.raises(UnknownEnv, match='Did you mean "istar/Sokoban-v0"'):
        make("istar/Sokobn-v0")
    with pytest.raises(EnvError, match='Did you mean "max_steps"'):
        make(SOKOBAN, options={"max_step": 3})
    with pytest.raises(ConfigError, match="Write it as http"):
        RemoteEnv("localhost:8700", SOKOBAN)
    with (
        refusing_address() as nobody,
        pytest.raises(ServerUnreachable, match=r"refused.*istar-envs serve --all"),
    ):
        RemoteEnv(nobody, SOKOBAN, patience_s=0.05)
    with pytest.raises(EnvError, match=r"Not Found \(POST /elsewhere/v1/sessions\)"):
        RemoteEnv(f"{url}/elsewhere/", SOKOBAN)
    with file_server() as other, pytest.raises(ServerUnreachable, match="Correct the address"):
        RemoteEnv(other.address, SOKOBAN, patience_s=0.05)


def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerUnreachable, match="timed out"):
            RemoteEnv(address, SOKOBAN, timeout_s=0.05, patience_s=0.1)


def test_a_vector_of_remote_episodes_equals_local_ones(url):
    for env_id in (SOKOBAN, SHOP):
        vector = gym.make_vec("istar/Remote-v0", 5, url=url, env=env_id, connections=2)
        singles = [istar_envs.make(env_id) for _ in range(5)]
        observations, infos = vector.reset(seed=10)
        for row, single in enumerate(singles):
            want = single.reset(seed=10 + row)
            assert canonical(observations[row]) == canonical(want[0])
            assert infos["task_id"][row] == want[1]["task_id"]
        assert infos["_task_id"].all()
        with pytest.raises(EnvError, match="4 actions for 5 rows"):
            vector.step([0] * 4)
        with pytest.raises(EnvError, match="2 seeds for 5 rows"):
            vector.reset(seed=[1, 2])
        vector.close()
        vector.close()


def test_a_vector_plays_given_tasks_and_tells_a_refused_action(url):
    vector = gym.make_vec("istar/Remote-v0", 2, url=url, env=SOKOBAN, options={"split": "test"})
    with pytest.raises(ResetNeeded):
        vector.step([0, 0])
    tasks = vector.task_ids()[3:5]
    _, infos = vector.reset(options={"task_ids": tasks})
    assert list(infos["task_id"]) == tasks
    with pytest.raises(EnvError, match="action 8 is outside"):
        vector.step([0, 8])
    *_, infos = vector.step([0, 0])
    assert infos["steps"].tolist() == [2, 1]
    vector.close()


@pytest.mark.parametrize("num_episodes", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_episodes_over_a_failing_connection_equal_local_ones(url, num_episodes):
    with faulty_proxy(url, share=0.2, seed=0) as proxy:
        local = istar_envs.make(SOKOBAN)
        remote = istar_envs.make("istar/Remote-v0", url=proxy.url, env=SOKOBAN)
        for episode in range(num_episodes):
            assert trace(remote, episode) == trace(local, episode)
        remote.close()
    assert all(proxy.broken.values()), proxy.broken


def test_a_vector_over_a_failing_connection_equals_local_episodes(url):
    with faulty_proxy(url, share=0.2, seed=1) as proxy:
        traces = []
        for address in (url, proxy.url):
            vector = gym.make_vec("istar/Remote-v0", 4, url=address, env=SOKOBAN)
            texts = [canonical(vector.reset(seed=0))]
            texts += [canonical(vector.step([step % 4] * 4)) for step in range(40)]
            vector.close()
            traces.append(texts)
    assert traces[0] == traces[1]
    assert sum(proxy.broken.values()) > 3


def test_a_session_that_was_idle_for_too_long_is_lost_and_a_reset_opens_another(tmp_path: Path):
    with serving(tmp_path / "log", SOKOBAN, "--idle-s", "3") as server:
        env = istar_envs.make("istar/Remote-v0", url=server.url, env=SOKOBAN)
        env.reset(seed=0)
        server.wait_for("session expired")
        with pytest.raises(SessionLost, match="was idle for more than 3 s"):
            env.step(0)
        with pytest.raises(ResetNeeded):
            env.step(0)
        assert env.reset(seed=0)[1]["steps"] == 0
        env.close()
