import json
from dataclasses import replace

import pytest

from istar_envs.errors import ConfigError
from istar_judges import (
    ChatMessage,
    JudgeError,
    PreferencePair,
    preference_example,
    read_pairs,
    read_preference_examples,
    write_pairs,
    write_preference_examples,
)

PAIRS = (
    PreferencePair("g1", "a", "b", weight=1 / 3, target=0.7310585786300049),
    PreferencePair("täsk 2", "c", "d", weight=2 / 3),
)


def test_pairs_come_back_equal(tmp_path):
    write_pairs(tmp_path / "pairs.jsonl", PAIRS)
    assert read_pairs(tmp_path / "pairs.jsonl") == PAIRS


def test_no_pairs_make_an_empty_file(tmp_path):
    write_pairs(tmp_path / "pairs.jsonl", ())
    assert (tmp_path / "pairs.jsonl").read_text() == ""
    assert read_pairs(tmp_path / "pairs.jsonl") == ()


def test_an_example_shares_the_first_prompt_and_alternates_roles(play):
    won, lost = play(["right"]), play(["down", None])
    example = preference_example(won, lost)
    board = won.transitions[0].observation
    assert example.prompt == (ChatMessage("user", f"Push every box onto a target.\n\n{board}"),)
    assert example.chosen == (ChatMessage("assistant", "<action>right</action>"),)
    assert example.rejected == (
        ChatMessage("assistant", "<action>down</action>"),
        ChatMessage("user", "######\n#-$.-#\n#@---#\n######"),
        ChatMessage("assistant", "hm"),
    )


def test_examples_come_back_equal_in_the_layout_of_dpo_trainers(play, tmp_path):
    path = tmp_path / "dpo.jsonl"
    example = preference_example(play(["right"], note='"so"\n\u2028é '), play(["down", "up"]))
    write_preference_examples(path, [example, example])
    assert read_preference_examples(path) == (example, example)
    record = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    assert list(record) == ["prompt", "chosen", "rejected"]
    assert [message["role"] for message in record["prompt"]] == ["user"]
    assert [message["role"] for message in record["rejected"]] == ["assistant", "user", "assistant"]


def test_episodes_that_start_apart_make_no_example(play):
    late = play(["down", "up"])
    with pytest.raises(JudgeError, match=r"tasks level-1 and level-1 do not start alike.*one task only"):
        preference_example(play(["right"]), replace(late, transitions=late.transitions[1:]))


def test_pictures_and_empty_episodes_make_no_example(play):
    with pytest.raises(JudgeError, match=r"level-1 \(istar/VisualSokoban-v0\) has pictures.*pairs layout"):
        preference_example(play(["right"], pictures=True), play(["down"], pictures=True))
    with pytest.raises(JudgeError, match=r"level-1 has no step.*Leave it out"):
        preference_example(play(["right"]), play([]))


def test_an_existing_file_is_kept_unless_told_otherwise(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write_pairs(path, PAIRS)
    with pytest.raises(ConfigError, match=r"output exists already: .*pairs.jsonl.*--overwrite"):
        write_pairs(path, ())
    assert read_pairs(path) == PAIRS
    write_pairs(path, PAIRS[:1], overwrite=True)
    assert read_pairs(path) == PAIRS[:1]


def test_a_failure_while_writing_leaves_nothing_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write_pairs(path, PAIRS)

    def broken():
        yield PAIRS[0]
        raise RuntimeError("out of pairs")

    with pytest.raises(RuntimeError, match="out of pairs"):
        write_pairs(path, broken(), overwrite=True)
    assert read_pairs(path) == PAIRS
    assert [entry.name for entry in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere.*\(No such file or directory\).*folder"):
        write_pairs(tmp_path / "nowhere" / "pairs.jsonl", PAIRS)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read preference pairs: .*none.jsonl \(No such file"):
        read_pairs(tmp_path / "none.jsonl")
    (tmp_path / "picture.jsonl").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError, match=r"picture.jsonl is not UTF-8 text"):
        read_pairs(tmp_path / "picture.jsonl")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line: Invalid JSON"),
        ('{"group_id": "g", "preferred": "a", "rejected": "b"}', "weight: Field required"),
        ('{"group_id": "g", "preferred": "a", "rejected": "a", "weight": 1}', "two different ids"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, reason):
    path = tmp_path / "pairs.jsonl"
    write_pairs(path, PAIRS[:1])
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=rf"pairs.jsonl, line 3: not a preference pair: .*{reason}"):
        read_pairs(path)
    with pytest.raises(ConfigError, match="line 1: not a prompt/chosen/rejected example: prompt"):
        read_preference_examples(path)
