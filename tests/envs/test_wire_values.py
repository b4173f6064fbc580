import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import istar_envs
from istar_envs.conformance.play import canonical
from istar_envs.errors import EnvError
from istar_envs.spaces import AnyText
from istar_envs.wire.descriptions import build, describe
from istar_envs.wire.values import dumps, from_wire, loads, to_wire

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("$ab", max_size=2) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(here: object, there: object) -> bool:
    return repr(here) == repr(there)


@pytest.mark.property
@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_a_value_comes_back_as_it_went(value):
    text = dumps(to_wire(value))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert same(loads(text), value)
    assert same(from_wire(json.loads(text)), value)


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1, 2], [3, 4]], np.int16),
        np.array([0.1, math.nan, -0.0]),
        np.array([True, False]),
        np.zeros((0, 3), np.uint8),
        np.array(7),
        np.float32(0.1),
        np.int64(-3),
        np.bool_(True),
        PICTURE,
        {"$array": 1},
        {"half": "\ud800", "moves": ("up", {"n": 1.0})},
    ],
    ids=repr,
)
@pytest.mark.parametrize("pictures", ["png", "raw"])
def test_arrays_and_odd_values_keep_type_shape_and_bits(value, pictures):
    back = loads(dumps(to_wire(value, pictures)))
    assert type(back) is type(value)
    assert canonical(back) == canonical(value)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, 2**70, -(2**63) - 1, [2**64, "東京", 1e300]])
def test_what_few_writers_of_json_take_comes_back_too(value):
    assert loads(dumps(to_wire(value)).encode()) == value


def test_pictures_travel_compressed_or_byte_by_byte():
    assert list(to_wire(PICTURE, "png")) == ["$png"]
    assert to_wire(PICTURE, "raw")["$array"]["shape"] == [4, 4, 3]


def test_an_array_that_came_can_be_written_to():
    loads(dumps(to_wire(np.zeros(3))))[0] = 1.0


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.array(["text"]), [np.array([None])]])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        to_wire(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$unknown": 1},
        {"$png": "iVBORw0KGgo="},
        {"$array": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"$array": {"dtype": "<i8", "shape": [2], "data": "AAAAAAAAAAA="}},
        {"$array": {"dtype": "nonsense", "shape": [], "data": ""}},
        {"$array": {"dtype": "<i8", "shape": [1], "data": "no base 64"}},
        {"$array": 3},
        {"$float": "1.5"},
        {"$tuple": 4},
        {"$dict": [[[], 1]]},
    ],
    ids=repr,
)
def test_what_a_stranger_sends_is_read_with_care(value):
    with pytest.raises(ValueError, match=r"\S"):
        from_wire([value])


def test_deep_nesting_is_refused():
    value: object = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(ValueError, match="levels deep"):
        from_wire(value)


@pytest.mark.parametrize("env_id", [name for name in istar_envs.env_ids() if "Remote" not in name])
def test_spaces_and_language_are_built_anew_from_their_descriptions(env_id):
    if "Browser" in env_id and not shutil.which("chromium"):
        pytest.skip("chromium is not on the PATH")
    env = istar_envs.make(env_id, disable_env_checker=True)
    for space in (env.observation_space, env.action_space):
        twin = build(json.loads(dumps(describe(space))))
        assert twin == space
        assert type(twin) is type(space)
        space.seed(3)
        twin.seed(3)
        assert [canonical(twin.sample()) for _ in range(9)] == [canonical(space.sample()) for _ in range(9)]
    language = env.unwrapped.language
    twin = build(json.loads(dumps(describe(language))))
    assert type(twin) is type(language)
    assert twin.__dict__ == language.__dict__
    assert twin.role == language.role
    env.close()


def test_only_known_classes_are_described_and_built():
    class Own(AnyText):
        pass

    with pytest.raises(TypeError, match="cannot be described"):
        describe(Own())
    for description in ({"type": "Popen"}, {}, {"type": "Discrete", "m": 3}, {"type": "ShopActions"}):
        with pytest.raises(EnvError, match="same version"):
            build(description)
