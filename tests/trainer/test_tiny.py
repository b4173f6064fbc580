"""The tiny model and its tokenizer: one token per cell, any text, ordinary layout."""

import re
import unicodedata

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

import istar_envs
from istar_envs.agent import Conversation
from istar_trainer.context import encode, render
from istar_trainer.tiny import collect_text, init_tiny, make_model, train_tokenizer
from istar_trainer.weights import copy_weights, load_model


@pytest.fixture(scope="module")
def start() -> Conversation:
    conversation = Conversation(istar_envs.make("istar/Sokoban-v0"), template="bare-v1", window=0)
    conversation.reset(seed=0)
    return conversation


@pytest.fixture(scope="module")
def trained_tokenizer():
    env = istar_envs.make("istar/Sokoban-v0")
    return train_tokenizer(collect_text(env, template="bare-v1", window=0, episodes=50))


def test_a_board_has_one_token_per_character(tiny_tokenizer, start):
    board = start.messages()[-1]["content"]
    assert tiny_tokenizer.convert_ids_to_tokens(encode(tiny_tokenizer, board.replace("\n", ""))) == list(
        board.replace("\n", "")
    )
    assert len(encode(tiny_tokenizer, board)) == len(board)


def test_a_prompt_and_a_reply_are_short(tiny_tokenizer, start):
    assert len(encode(tiny_tokenizer, render(tiny_tokenizer, start.messages()))) < 60
    for word in ("up", "down", "left", "right"):
        assert len(encode(tiny_tokenizer, f"<action>{word}</action>")) == 3


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.text().map(lambda text: unicodedata.normalize("NFC", text)))
def test_any_composed_text_comes_back_as_it_was(tiny_tokenizer, text):
    assert tiny_tokenizer.decode(encode(tiny_tokenizer, text)) == text


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("up#@$. -\n1,'é<>")) | st.text())
@example("\n12 click[G3GW4F] [SEP] Price: $9.50")
def test_the_tokenizer_is_loaded_as_it_was_trained(trained_tokenizer, tiny_tokenizer, text):
    assert encode(trained_tokenizer, text) == encode(tiny_tokenizer, text)


def test_codes_and_separators_are_single_tokens_when_a_model_is_loaded(tmp_path):
    env = istar_envs.make("istar/WebShop-v0", tagger="light")
    size = {"hidden_size": 8, "num_layers": 1, "num_heads": 1}
    texts = collect_text(env, template="bare-v1", window=0, episodes=3)
    code = next(code for text in texts for code in re.findall(r"\bG[0-9A-Z]{5}\b", text))
    init_tiny(env, tmp_path / "m", template="bare-v1", window=0, vocab_size=3000, episodes=3, seed=0, **size)
    model, tokenizer = load_model(tmp_path / "m")
    pieces = [tokenizer.decode([i]) for i in encode(tokenizer, f"<action>click[{code}] [SEP] Back: x 12")]
    assert pieces[:5] == ["<action>", "click", "[", code, "]"]
    assert pieces[5:] == [" [SEP] ", "Back", ": ", "x", *pieces[9:]]
    assert model.config.vocab_size == len(tokenizer) <= 3000 + 4


def test_control_tokens_are_single_and_left_out_of_replies(tiny_tokenizer):
    assert tiny_tokenizer.eos_token == "<|im_end|>"
    ids = encode(tiny_tokenizer, "<action>up</action><|im_end|>")
    assert ids[-1] == tiny_tokenizer.eos_token_id
    assert tiny_tokenizer.decode(ids, skip_special_tokens=True) == "<action>up</action>"
    assert tiny_tokenizer.pad_token_id == 0 != tiny_tokenizer.eos_token_id


def test_equal_texts_give_equal_tokenizers():
    texts = collect_text(istar_envs.make("istar/Sokoban-v0"), template="act-v1", window=1, episodes=3)
    one, other = (train_tokenizer(texts) for _ in range(2))
    assert one.get_vocab() == other.get_vocab()
    assert len(one) <= 512 + 4


def test_collected_text_is_what_the_model_will_read():
    env = istar_envs.make("istar/Sokoban-v0", max_steps=3, max_moves=3)
    texts = collect_text(env, template="act-v1", window=1, episodes=2)
    assert texts == collect_text(env, template="act-v1", window=1, episodes=2)
    assert any("Step 1, you did:" in text for text in texts)
    assert any(text.startswith("<action>") for text in texts)
    assert any("warehouse keeper" in text for text in texts)


def test_pictures_are_left_out_of_collected_text():
    env = istar_envs.make("istar/VisualSokoban-v0", max_steps=3, max_moves=3)
    texts = collect_text(env, template="act-v1", window=0, episodes=1)
    assert all(isinstance(text, str) for text in texts)
    assert any("Now you see:" in text for text in texts)


def test_weights_depend_on_the_seed_only_and_leave_the_global_generator_alone():
    options = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "eos_token_id": 2}
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, again, other = (copy_weights(make_model(30, seed=seed, **options)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_what_is_saved_loads_in_the_ordinary_way(tiny_folder, tiny_tokenizer):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    assert model.config.model_type == "qwen2"
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.get_vocab() == tiny_tokenizer.get_vocab()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "#@#"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\n#@#<|im_end|>\n<|im_start|>assistant\n"
