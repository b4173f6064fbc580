"""Messages into prompt ids: sampled ids stay as they were drawn, whatever their text would encode to."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from istar_envs.errors import ConfigError
from istar_trainer.context import FullContext, WindowContext, encode, render

APPENDING = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}$ {% endif %}{% endfor %}"
STRIPPING = (
    "{% for m in messages %}{{ m.content | trim }}{% if m.role == 'assistant' %}$ {% endif %}{% endfor %}"
)
FORGETTING = (
    "{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ m.content }}"
    "{% else %}…{% endif %}{% endfor %}"
)


def make_merging_tokenizer(template: str = APPENDING) -> PreTrainedTokenizerFast:
    """Letters, and every pair of equal letters as one token: it merges across any border."""
    letters = ["a", "b", "c", "d", " ", "…"]
    pairs = [2 * letter for letter in "abcd"]
    vocab = {token: number for number, token in enumerate([*letters, *pairs, "$"])}
    tokenizer = Tokenizer(models.BPE(vocab, [(letter, letter) for letter in "abcd"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="$", pad_token="$", chat_template=template
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def tokens(tokenizer, ids: list[int]) -> list[str]:
    return tokenizer.convert_ids_to_tokens(ids)


def test_sampled_ids_are_kept_although_encoding_their_text_would_merge_them():
    tokenizer = make_merging_tokenizer()
    context = FullContext(tokenizer)
    first = context.prompt([user("ab")]).ids
    assert tokens(tokenizer, first) == ["a", "b"]
    sampled = [*tokenizer.convert_tokens_to_ids(["b", "c", "c"]), tokenizer.eos_token_id]
    context.responded(sampled)
    second = context.prompt([user("ab"), reply("bcc"), user("da")]).ids
    assert second[: len(first) + len(sampled)] == [*first, *sampled]
    assert tokens(tokenizer, second[len(first) + len(sampled) :]) == [" ", "d", "a"]
    merged = encode(tokenizer, "abbcc$ da")
    assert tokens(tokenizer, merged) == ["a", "bb", "cc", "$", " ", "d", "a"]
    assert second != merged


def test_every_prompt_extends_the_last_prompt_and_reply():
    tokenizer = make_merging_tokenizer()
    context, messages, before = FullContext(tokenizer), [user("aa")], []
    for turn in range(4):
        prompt = context.prompt(messages).ids
        assert prompt[: len(before)] == before
        sampled = [*tokenizer.convert_tokens_to_ids(["b"] * (turn + 1)), tokenizer.eos_token_id]
        context.responded(sampled)
        before = [*prompt, *sampled]
        messages = [*messages, reply("b" * (turn + 1)), user("bb")]


def test_a_reply_that_was_cut_off_gets_the_end_that_the_template_writes():
    tokenizer = make_merging_tokenizer()
    context = FullContext(tokenizer)
    context.prompt([user("a")])
    context.responded(tokenizer.convert_tokens_to_ids(["b", "b"]))
    prompt = context.prompt([user("a"), reply("bb"), user("c")]).ids
    assert tokens(tokenizer, prompt) == ["a", "b", "b", "$", " ", "c"]


def test_returned_ids_are_the_callers_own():
    context = FullContext(make_merging_tokenizer())
    context.prompt([user("ab")]).ids.append(99)
    context.responded([1])
    assert 99 not in context.prompt([user("ab"), reply("b"), user("c")]).ids


@pytest.mark.parametrize("template", [STRIPPING, FORGETTING])
def test_a_template_that_rewrites_earlier_turns_is_refused(template):
    context = FullContext(make_merging_tokenizer(template))
    ids = context.prompt([user("ab")]).ids
    context.responded(ids)
    with pytest.raises(ConfigError, match=r"rewrites earlier turns.*window >= 0"):
        context.prompt([user("ab"), reply(" ab "), user("c")])


def test_the_tiny_tokenizers_template_only_appends(tiny_tokenizer):
    context = FullContext(tiny_tokenizer)
    first = context.prompt([user("#@ #")]).ids
    sampled = [*encode(tiny_tokenizer, "<action> up </action>\n"), tiny_tokenizer.eos_token_id]
    context.responded(sampled)
    messages = [user("#@ #"), reply("<action> up </action>\n"), user("# @#")]
    second = context.prompt(messages).ids
    assert second[: len(first) + len(sampled)] == [*first, *sampled]
    assert tiny_tokenizer.decode(second) == render(tiny_tokenizer, messages)


def test_the_window_renders_anew_and_reads_equal_messages_once():
    class Counting(PreTrainedTokenizerFast):
        calls = 0

        def __call__(self, *args, **options):
            Counting.calls += 1
            return super().__call__(*args, **options)

    plain = make_merging_tokenizer()
    tokenizer = Counting(tokenizer_object=plain.backend_tokenizer, eos_token="$", chat_template=APPENDING)
    cache: dict[str, list[int]] = {}
    one, other = WindowContext(tokenizer, cache), WindowContext(tokenizer, cache)
    ids = one.prompt([user("abba")]).ids
    one.responded([1, 2, 3])
    assert one.prompt([user("abba")]).ids == other.prompt([user("abba")]).ids == ids
    assert Counting.calls == 1
    assert one.prompt([user("ab")]).ids != ids
    assert Counting.calls == 2


def test_special_tokens_in_text_are_recognized_and_none_are_added(tiny_tokenizer):
    ids = encode(tiny_tokenizer, "<action>up</action>")
    assert tokens(tiny_tokenizer, ids) == ["<action>", "up", "</action>"]
