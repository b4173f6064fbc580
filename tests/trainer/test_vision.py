"""Pictures from the environment to the model: placeholders, pixels, positions, sampling, learning."""

import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoImageProcessor

import istar_envs
from builders import EOS
from istar_envs.agent import Conversation
from istar_envs.episode import read_episodes
from istar_envs.errors import ConfigError
from istar_trainer.attempts import Task
from istar_trainer.batch import StepBatch, collate
from istar_trainer.config_lora import LoraConfig
from istar_trainer.context import FullContext, Prompt, WindowContext, encode
from istar_trainer.learner import Optimization, TorchLearner, TorchModel
from istar_trainer.lora import Backbone
from istar_trainer.model import forward
from istar_trainer.pictures import PictureReader, PlacedPicture, look, reader_of
from istar_trainer.pipeline import run_training
from istar_trainer.progress import Progress
from istar_trainer.records import Step, Trajectory
from istar_trainer.rollout import Player
from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.sft import demonstration_batch
from istar_trainer.tiny import init_tiny
from istar_trainer.vision import Shown, freeze_vision, pixel_values, place_pictures, rope_positions
from istar_trainer.weights import load_model
from tiny_run import tiny_config
from vision_models import KINDS, older_class, with_larger_weights

CLOSE = 1e-4
"""Sampler and learner, which pad and batch differently, agree to this on a logprob."""
make_env = partial(istar_envs.make, "istar/VisualSokoban-v0")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A tiny model of each class; only their weights and config.json differ."""
    out = {kind: tmp_path_factory.mktemp("vision") / kind for kind in KINDS}
    env = make_env()
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "vision_layers": 2}
    init_tiny(env, out["qwen2_5_vl"], template="bare-v1", window=0, episodes=1, seed=0, **sizes)
    env.close()
    shutil.copytree(out["qwen2_5_vl"], out["qwen2_vl"])
    for kind, folder in out.items():
        model, _ = load_model(folder)
        model = older_class(model.config) if kind == "qwen2_vl" else model
        with_larger_weights(model).save_pretrained(folder)
    return out


@pytest.fixture(params=KINDS)
def loaded(request, folders) -> tuple[nn.Module, Any]:
    """Model and tokenizer of each class."""
    return load_model(folders[request.param])


@pytest.fixture(scope="module")
def tokenizer(folders) -> Any:
    return load_model(folders["qwen2_5_vl"])[1]


@pytest.fixture(scope="module")
def reader(tokenizer) -> PictureReader:
    return reader_of(tokenizer)


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Pixels of so many cells of 28 × 28."""
    return np.random.default_rng(seed).integers(0, 256, (28 * rows, 28 * columns, 3), np.uint8)


def play(
    model: nn.Module, tokenizer: Any, *, window: int | None, num_tasks: int = 2, kept_mib: int = 0
) -> tuple[Trajectory, ...]:
    player = Player(
        partial(make_env, max_steps=3), tokenizer, template="bare-v1", window=window, max_prompt_tokens=500
    )
    sampler = LocalSampler(model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=4, kept_mib=kept_mib)
    tasks = [Task(f"t{seed}", seed) for seed in range(num_tasks)]
    groups = player.play(tasks, sampler, group_size=2, seed=0, temperature=1.0)
    player.close()
    return tuple(t for group in groups for t in group.trajectories)


def batch_of(trajectories: tuple[Trajectory, ...]) -> StepBatch:
    assert [t.episode.error for t in trajectories] == [None] * len(trajectories)
    return collate(trajectories, list(dict.fromkeys(t.group_id for t in trajectories)))


def library_logprobs(model: nn.Module, step: Step, token_id: int) -> Tensor:
    """Logprobs of a step's response by the library's own path: pixels, grids, positions and all."""
    ids = torch.tensor([[*step.prompt_ids, *step.response_ids]])
    pictures = [placed.picture for placed in step.pictures]
    out = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == token_id).int(),
        pixel_values=pixel_values(pictures),
        image_grid_thw=torch.tensor([[1, *picture.grid] for picture in pictures]),
    )
    start = len(step.prompt_ids)
    chosen = ids[0, start:, None]
    return out.logits[0, start - 1 : -1].log_softmax(-1).gather(1, chosen).squeeze(1)


@pytest.mark.parametrize(("tile_size", "per_cell"), [(28, 1), (56, 4)])
def test_a_board_has_one_token_per_cell_of_28_pixels(tokenizer, reader, tile_size, per_cell):
    env = make_env(tile_size=tile_size)
    conversation = Conversation(env, template="bare-v1", window=0)
    conversation.reset(seed=0)
    prompt = WindowContext(tokenizer, {}).prompt(conversation.messages())
    height, width = env.unwrapped.height, env.unwrapped.width
    assert prompt.ids.count(reader.token_id) == height * width * per_cell
    (placed,) = prompt.pictures
    run = slice(placed.start, placed.start + placed.picture.num_tokens)
    assert set(prompt.ids[run]) == {reader.token_id}
    env.close()


def test_each_token_of_a_board_is_made_of_one_tile(reader):
    tiles = np.arange(6, dtype=np.uint8).reshape(2, 3)
    picture = reader.read(np.repeat(np.kron(tiles, np.ones((28, 28), np.uint8))[..., None], 3, axis=2))
    assert picture.cells == (2, 3)
    assert (picture.patches.reshape(6, -1) == np.arange(6)[:, None]).all()


@pytest.mark.parametrize("shape", [(168, 168, 3), (100, 61, 3)])
def test_pixels_are_scaled_as_the_librarys_processor_scales_them(folders, reader, shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    expected = AutoImageProcessor.from_pretrained(folders["qwen2_5_vl"])(images=[pixels], return_tensors="pt")
    picture = reader.read(pixels)
    assert [1, *picture.grid] == expected["image_grid_thw"][0].tolist()
    torch.testing.assert_close(pixel_values([picture]), expected["pixel_values"], atol=1e-6, rtol=0)


def test_equal_pixels_are_kept_once_and_stay_equal_when_sent_elsewhere(reader):
    first, again, other = (reader.read(noise(2, 2, seed)) for seed in (0, 0, 1))
    assert first is again
    assert first != other
    sent = pickle.loads(pickle.dumps([first, again]))
    assert sent[0] == first
    assert sent[0] is sent[1]


def test_positions_are_the_librarys_own(loaded, reader):
    model, _ = loaded
    picture = reader.token_id
    rows = [
        ([5, 6, *[picture] * 6, 7, *[picture] * 8, 8, 9], [(2, (2, 3)), (9, (4, 2))]),
        ([*[picture] * 5, 7, 8], [(0, (1, 5))]),
        ([4, *[picture] * 3], [(1, (3, 1))]),
        ([4, 5, 6], []),
    ]
    width = max(len(ids) for ids, _ in rows)
    ids, attention = torch.zeros(4, width, dtype=torch.int64), torch.zeros(4, width, dtype=torch.int64)
    for row, (tokens, _) in enumerate(rows):
        ids[row, width - len(tokens) :], attention[row, width - len(tokens) :] = torch.tensor(tokens), 1
    placed = [
        [PlacedPicture(reader.read(noise(*cells)), start) for start, cells in shown] for _, shown in rows
    ]
    grids = torch.tensor([[1, *p.picture.grid] for shown in placed for p in shown])
    album, pictures = place_pictures(placed, [width - len(tokens) for tokens, _ in rows])
    positions, ends = rope_positions(attention, Shown.of(pictures, album))
    expected, deltas = model.model.get_rope_index(
        ids, mm_token_type_ids=(ids == picture).int(), image_grid_thw=grids, attention_mask=attention
    )
    real = attention.bool().expand(3, -1, -1)
    assert torch.equal(positions[real], expected[real])
    assert torch.equal(ends, attention.sum(dim=1) + deltas.squeeze(1))


def test_a_batch_with_pictures_is_scored_as_the_library_scores_each_row(loaded, reader):
    model, tokenizer = loaded
    start, end = tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])

    def step(head: list[int], cells: tuple[int, int], seed: int, response: list[int]) -> Step:
        picture = reader.read(noise(*cells, seed))
        prompt = [*head, start, *[reader.token_id] * picture.num_tokens, end, 9]
        return Step(prompt, response, [0.0] * len(response), (PlacedPicture(picture, len(head) + 1),))

    steps = [
        step([5, 6], (2, 3), 0, [7, EOS]),
        step([5, 6], (2, 3), 1, [7, EOS]),  # the same tokens under another picture
        step([5, 6], (3, 2), 0, [7, EOS]),  # as many tokens in another shape
        step([5, 6], (2, 3), 0, [7, EOS]),
        step([8], (1, 2), 2, [7, 8, 9, EOS]),
    ]
    batch = demonstration_batch(steps)
    found = TorchModel(model, temperature=1.0, micro_batch_tokens=40).logprobs(batch)
    for row, one in enumerate(steps):
        with torch.no_grad():
            expected = library_logprobs(model, one, reader.token_id)
        torch.testing.assert_close(found[row][batch.response_mask[row]], expected, atol=CLOSE, rtol=0)
    assert len({round(float(row.sum()), 3) for row in found[:3]}) == 3


@pytest.mark.parametrize("sees_pictures", [True, False])
def test_packed_rows_with_pictures_are_scored_as_padded_ones(loaded, sees_pictures):
    model, tokenizer = loaded
    batch = batch_of(play(model, tokenizer, window=1))
    padded, packed = (
        TorchModel(model, temperature=1.0, micro_batch_tokens=400, packing=packing)
        for packing in (False, True)
    )
    padded.sees_pictures = packed.sees_pictures = sees_pictures
    torch.testing.assert_close(padded.logprobs(batch), packed.logprobs(batch), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("sees_pictures", [True, False])
@pytest.mark.parametrize("packing", [False, True])
def test_growing_dialogues_with_pictures_are_scored_as_separate_rows(loaded, packing, sees_pictures):
    model, tokenizer = loaded
    batch = batch_of(play(model, tokenizer, window=None))
    assert 0 < len(batch.families()) < len(batch)
    separate = TorchModel(model, temperature=1.0, micro_batch_tokens=400)
    merged = TorchModel(model, temperature=1.0, micro_batch_tokens=400, packing=packing, merge_prefixes=True)
    separate.sees_pictures = merged.sees_pictures = sees_pictures
    torch.testing.assert_close(merged.logprobs(batch), separate.logprobs(batch), atol=CLOSE, rtol=0)


def test_an_adapter_reaches_the_vision_tower(folders):
    pytest.importorskip("peft")
    model, tokenizer = load_model(folders["qwen2_5_vl"])
    backbone = Backbone(model, LoraConfig(rank=2), seed=0)
    policy, start = backbone.adapted(), backbone.bare()
    trajectories = play(policy, tokenizer, window=0)
    batch = batch_of(trajectories)
    learner = TorchLearner(policy, Optimization(1e-2, 0.0, 1.0), temperature=1.0, micro_batch_tokens=400)
    assert (learner.logprobs(batch) - batch.sampler_logprobs).abs().max() < CLOSE
    for _ in range(2):  # the first update moves only the second of each pair of adapter matrices
        learner.backward(batch, lambda out, _rows: out.logprobs().sum())
        learner.step()
    moved = {name for name, value in learner.snapshot().items() if "lora_A" in name and value.any()}
    assert any(".visual." in name for name in moved)
    before = TorchModel(start, temperature=1.0, micro_batch_tokens=400).logprobs(batch)
    assert (before - batch.sampler_logprobs).abs().max() < CLOSE
    assert (learner.logprobs(batch) - before).abs().max() > 0.01


@pytest.mark.parametrize("window", [0, 2, None])
def test_sampler_and_learner_agree_whatever_history_a_prompt_shows(loaded, window):
    model, tokenizer = loaded
    trajectories = play(model, tokenizer, window=window)
    batch = batch_of(trajectories)
    shown = [len(step.pictures) for step in trajectories[0].steps]
    assert shown == ([1, 1, 1] if window == 0 else [1, 2, 3])
    learner = TorchModel(model, temperature=1.0, micro_batch_tokens=100)
    assert (learner.logprobs(batch) - batch.sampler_logprobs).abs().max() < CLOSE


def test_a_game_that_is_read_from_where_it_goes_on_is_the_game_that_is_read_anew_each_step(loaded):
    model, tokenizer = loaded
    read: list[int] = []
    model.register_forward_pre_hook(
        lambda _module, _arguments, options: read.append(options["input_ids"].numel()), with_kwargs=True
    )
    anew, kept = (batch_of(play(model, tokenizer, window=None, kept_mib=mib)) for mib in (0, 16))
    assert torch.equal(anew.input_ids, kept.input_ids)
    torch.testing.assert_close(anew.sampler_logprobs, kept.sampler_logprobs, atol=CLOSE, rtol=0)
    half = len(read) // 2
    assert sum(read[half:]) < sum(read[:half]) / 1.5


def test_in_a_full_dialogue_prompts_only_grow_and_pictures_keep_their_places(folders):
    model, tokenizer = load_model(folders["qwen2_5_vl"])
    token_id = reader_of(tokenizer).token_id
    for trajectory in play(model, tokenizer, window=None):
        for earlier, later in zip(trajectory.steps, trajectory.steps[1:], strict=False):
            said = [*earlier.prompt_ids, *earlier.response_ids]
            assert list(later.prompt_ids[: len(said)]) == said
            assert later.pictures[: len(earlier.pictures)] == earlier.pictures
        for placed in trajectory.steps[-1].pictures:
            run = trajectory.steps[-1].prompt_ids[placed.start - 1 :][: placed.picture.num_tokens + 2]
            assert [token == token_id for token in run] == [False, *[True] * (len(run) - 2), False]


def test_a_placeholder_that_the_model_writes_is_a_token_like_any_other(folders, reader):
    model, _ = load_model(folders["qwen2_5_vl"])
    prompt = [5, *[reader.token_id] * 4, 6]
    shown = (PlacedPicture(reader.read(noise(2, 2)), 1),)
    sampler = LocalSampler(model, eos_token_id=-1, max_new_tokens=2)
    requests = [Request(prompt, seed, shown) for seed in range(3000)]
    drawn = sampler.generate(requests, temperature=50.0)
    written = next(c for c in drawn if c.response_ids[0] == reader.token_id)
    batch = demonstration_batch([Step(prompt, written.response_ids, written.logprobs, shown)])
    again = forward(model, batch, torch.tensor([0]), temperature=50.0).logprobs()[batch.response_mask]
    torch.testing.assert_close(again, torch.tensor(written.logprobs), atol=CLOSE, rtol=0)


def test_a_placeholder_in_a_text_is_dropped(tokenizer, reader):
    content = [{"type": "text", "text": f"a{reader.token}b"}, {"type": "image", "image": noise(1, 2)}]
    prompt = WindowContext(tokenizer, {}).prompt([{"role": "user", "content": content}])
    assert prompt.ids.count(reader.token_id) == 2
    assert prompt.pictures[0].start == prompt.ids.index(reader.token_id)
    assert look(tokenizer, [{"role": "user", "content": f"a{reader.token}b"}])[0][0]["content"] == "ab"


def test_pictures_with_equal_looking_messages_do_not_share_a_cached_prompt(tokenizer):
    cache: dict[str, Prompt] = {}
    black, dotted = np.zeros((1400, 1400, 3), np.uint8), np.zeros((1400, 1400, 3), np.uint8)
    dotted[700, 700] = 255
    one, other = (
        WindowContext(tokenizer, cache).prompt(
            [{"role": "user", "content": [{"type": "image", "image": pixels}]}]
        )
        for pixels in (black, dotted)
    )
    assert one.ids == other.ids
    assert one.pictures != other.pictures


def test_a_model_without_eyes_says_so(tiny_tokenizer):
    message = {"role": "user", "content": [{"type": "image", "image": noise(1, 1)}]}
    with pytest.raises(ConfigError, match=r"shows pictures, and the model reads none.*istar/Sokoban-v0"):
        FullContext(tiny_tokenizer).prompt([message])


def test_a_template_that_writes_another_number_of_placeholders_is_refused(folders):
    _, tokenizer = load_model(folders["qwen2_5_vl"])
    tokenizer.chat_template = "{% for message in messages %}x{% endfor %}"
    message = {"role": "user", "content": [{"type": "image", "image": noise(1, 1)}]}
    with pytest.raises(ConfigError, match=r"writes 0 placeholders for 1 pictures"):
        WindowContext(tokenizer, {}).prompt([message])


def test_a_broken_image_processor_is_named(folders, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folders["qwen2_5_vl"], broken)
    (broken / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json is not that of Qwen2-VL"):
        load_model(broken)


def test_trajectories_differ_if_only_their_pictures_do(reader):
    def trajectory(seed: int) -> Trajectory:
        step = Step([5], [7], [0.0], (PlacedPicture(reader.read(noise(1, 1, seed)), 0),))
        return Trajectory("t", "g", 0, (step,), None)

    assert trajectory(0).content_key == trajectory(0).content_key != trajectory(1).content_key


def test_the_vision_tower_learns(folders):
    model, tokenizer = load_model(folders["qwen2_5_vl"])
    batch = batch_of(play(model, tokenizer, window=0))
    learner = TorchLearner(model, Optimization(1e-3, 0.0, 1.0), temperature=1.0, micro_batch_tokens=100)
    learner.backward(batch, lambda out, _rows: out.logprobs().sum())
    assert all(p.grad is not None and p.grad.any() for p in model.model.visual.parameters() if p.dim() > 1)


def test_a_frozen_vision_tower_stays_as_it_was(folders):
    model, tokenizer = load_model(folders["qwen2_5_vl"])
    freeze_vision(model)
    batch = batch_of(play(model, tokenizer, window=0))
    learner = TorchLearner(model, Optimization(1e-3, 0.1, 1.0), temperature=1.0, micro_batch_tokens=400)
    before = learner.snapshot()
    learner.backward(batch, lambda out, _rows: out.logprobs().sum())
    learner.step()
    moved = {name for name, value in learner.snapshot().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if ".visual." not in name}


def test_freezing_what_is_not_there_or_has_adapters_is_refused(tiny_folder, tmp_path):
    with pytest.raises(ConfigError, match=r"freeze_vision: the model reads no pictures"):
        freeze_vision(load_model(tiny_folder)[0])
    with pytest.raises(ValueError, match=r"freeze_vision with model\.lora"):
        tiny_config(tmp_path, model={"freeze_vision": True, "lora": {"rank": 2}})


def test_a_blind_prm_reads_the_prompt_without_the_tokens_of_pictures(folders, tokenizer, reader):
    model, _ = load_model(folders["qwen2_5_vl"])
    blind = TorchModel(model, temperature=1.0, micro_batch_tokens=30)
    blind.sees_pictures = False
    head, tail = encode(tokenizer, "user a"), encode(tokenizer, "b left")

    def step(cells: tuple[int, int], response: list[int]) -> Step:
        picture = reader.read(noise(*cells))
        prompt = [*head, *[reader.token_id] * picture.num_tokens, *tail]
        return Step(prompt, response, [0.0] * len(response), (PlacedPicture(picture, len(head)),))

    batch = demonstration_batch([step((2, 3), [7, EOS]), step((1, 1), [8, 9, EOS])])
    text = demonstration_batch([Step([*head, *tail], r, [0.0] * len(r)) for r in ([7, EOS], [8, 9, EOS])])
    found, expected = blind.logprobs(batch), blind.logprobs(text)
    torch.testing.assert_close(found[batch.response_mask], expected[text.response_mask], atol=CLOSE, rtol=0)
    blind.sees_pictures = True
    assert (blind.logprobs(batch) - found).abs().max() > 0.01


@pytest.mark.usefixtures("_restore_torch")
@pytest.mark.parametrize("sees_images", [True, False])
def test_a_run_on_pictures_learns_and_leaves_a_policy_that_sees(tmp_path, sees_images):
    config = tiny_config(
        tmp_path / "run",
        iterations=1,
        env={"id": "istar/VisualSokoban-v0", "window": int(not sees_images)},
        model={"hidden_size": 32},
        warm_start={"episodes": 10, "max_epochs": 1, "target_success": 0.9},
        rollout={"num_tasks": 2},
        prm={"sees_images": sees_images},
        eval={"test_tasks": 2, "dev_tasks": 2},
    )
    with Progress() as progress:
        run_training(config, resume=False, progress=progress)
    model, tokenizer = load_model(tmp_path / "run" / "policy")
    assert type(model).__name__ == "Qwen2_5_VLForConditionalGeneration"
    batch = batch_of(play(model, tokenizer, window=0, num_tasks=1))
    assert len(batch.album) >= 1
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert 'alt="what the agent saw"' in report
    assert "is not in the run folder" not in report
    kept = {path.stem for path in (tmp_path / "run" / "images").iterdir()}
    (last,) = (tmp_path / "run" / "episodes").glob("after.jsonl")
    assert {t.image for episode in read_episodes(last) for t in episode.transitions} <= kept
