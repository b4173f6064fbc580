"""The forward pass against a plain one: logprobs, entropy, gradients, and what must not matter."""

import random
import shutil

import pytest
import torch
from torch import Tensor, nn

from builders import EOS, FLOAT32, VOCAB, assert_same_tensors, gradients, make_lm, make_scene, make_trajectory
from istar_envs.errors import ConfigError
from istar_trainer.batch import StepBatch, collate
from istar_trainer.model import divergence, forward
from istar_trainer.records import Step
from istar_trainer.weights import copy_weights, load_model, load_weights, num_parameters


def all_rows(batch: StepBatch) -> Tensor:
    return torch.arange(len(batch))


def plain_logprobs(model: nn.Module, steps: list[Step], temperature: float = 1.0) -> list[Tensor]:
    """Logprobs of each step's response, one step at a time, without padding or any other trick."""
    found = []
    for step in steps:
        ids = torch.tensor([[*step.prompt_ids, *step.response_ids]])
        logprobs = (model(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
        start = len(step.prompt_ids)
        found.append(logprobs.gather(1, ids[0, 1:, None])[start - 1 :, 0])
    return found


def steps_of(groups) -> list[Step]:
    return [step for group in groups for t in group.trajectories for step in t.steps]


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_logprobs_equal_those_of_a_plain_forward_pass_of_each_row(temperature):
    model, scene = make_lm(layers=2), make_scene()
    out = forward(model, scene.batch, all_rows(scene.batch), temperature=temperature)
    with torch.no_grad():
        expected = torch.cat(plain_logprobs(model, steps_of(scene.groups), temperature))
    logprobs = out.logprobs()
    torch.testing.assert_close(logprobs[scene.batch.response_mask], expected, rtol=0, atol=FLOAT32)
    assert logprobs[~scene.batch.response_mask].eq(0).all()


def test_gradient_equals_that_of_a_plain_forward_pass_although_equal_rows_are_computed_once():
    scene = make_scene()
    steps = [*steps_of(scene.groups), *steps_of(scene.groups)[:4]]
    batch = collate([make_trajectory("t", "g", steps)], ["g"])
    weights = torch.randn(batch.input_ids.shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = make_lm(layers=2), make_lm(layers=2)
    out = forward(ours, batch, all_rows(batch), temperature=0.7)
    assert len(out.mask) == len(batch) - 4
    (out.logprobs() * weights).sum().backward()
    (torch.cat(plain_logprobs(theirs, steps, 0.7)) * weights[batch.response_mask]).sum().backward()
    assert_same_tensors(gradients(ours), gradients(theirs), atol=1e-4)  # sums of dozens of terms


def test_equal_tokens_with_another_border_between_prompt_and_response_are_kept_apart():
    steps = [Step([3, 4, 5], [6, EOS], [0.0, 0.0]), Step([3, 4], [5, 6, EOS], [0.0, 0.0, 0.0])]
    batch = collate([make_trajectory("t", "g", steps)], ["g"])
    model = make_lm()
    logprobs = forward(model, batch, all_rows(batch), temperature=1.0).logprobs()
    with torch.no_grad():
        expected = torch.cat(plain_logprobs(model, steps))
    torch.testing.assert_close(logprobs[batch.response_mask], expected, rtol=0, atol=FLOAT32)


def test_padding_on_either_side_changes_no_logprob():
    model, (one, *_) = make_lm(layers=2), steps_of(make_scene().groups)
    long_prompt = Step([3] * 15, [4], [0.0])
    long_response = Step([3], [4] * 15, [0.0] * 15)
    (alone,) = plain_logprobs(model, [one])
    for others in ([long_prompt], [long_response], [long_prompt, long_response]):
        batch = collate([make_trajectory("t", "g", [one, *others])], ["g"])
        logprobs = forward(model, batch, all_rows(batch), temperature=1.0).logprobs()
        torch.testing.assert_close(logprobs[0][batch.response_mask[0]], alone, rtol=0, atol=FLOAT32)


def test_some_rows_in_any_order_give_what_all_rows_give():
    model, scene = make_lm(layers=2), make_scene()
    whole = forward(model, scene.batch, all_rows(scene.batch), temperature=1.0).logprobs()
    rows = torch.tensor([5, 0, 3, 3])
    part = forward(model, scene.batch, rows, temperature=1.0).logprobs()
    torch.testing.assert_close(part, whole[rows], rtol=0, atol=FLOAT32)


def test_entropy_is_that_of_the_distribution_each_token_was_drawn_from():
    model, scene = make_lm(), make_scene()
    steps = steps_of(scene.groups)
    entropy = forward(model, scene.batch, all_rows(scene.batch), temperature=0.5).entropy()
    for row, step in enumerate(steps):
        ids = torch.tensor([[*step.prompt_ids, *step.response_ids]])
        p = (model(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1] / 0.5).softmax(-1)
        expected = -(p * p.log()).sum(-1)
        own = entropy[row][scene.batch.response_mask[row]]
        torch.testing.assert_close(own, expected, rtol=0, atol=FLOAT32)
    assert entropy[~scene.batch.response_mask].eq(0).all()


def test_divergence_is_the_expected_log_ratio_under_the_old_model_and_0_for_itself():
    old, new, scene = make_lm(seed=0), make_lm(seed=1), make_scene()
    rows = all_rows(scene.batch)
    kl = divergence(
        forward(old, scene.batch, rows, temperature=1.0), forward(new, scene.batch, rows, temperature=1.0)
    )
    ids = torch.tensor([list(steps_of(scene.groups)[0].prompt_ids)])
    p, q = (model(input_ids=ids).logits[0, -1].detach().log_softmax(0) for model in (old, new))
    first = int(scene.batch.response_mask[0].int().argmax())
    assert float(kl[0, first].detach()) == pytest.approx(float((p.exp() * (p - q)).sum()), abs=FLOAT32)
    assert kl[~scene.batch.response_mask].eq(0).all()
    itself = forward(old, scene.batch, rows, temperature=1.0)
    assert divergence(itself, itself).abs().max() < FLOAT32


def test_logits_are_fp32_whatever_the_weights_are():
    scene = make_scene()
    out = forward(make_lm().bfloat16(), scene.batch, all_rows(scene.batch), temperature=1.0)
    assert out.logits.dtype == torch.float32
    assert out.logprobs().dtype == torch.float32


def test_only_columns_from_the_first_response_token_on_get_logits():
    rng = random.Random(0)
    steps = [Step([rng.randrange(3, VOCAB) for _ in range(50)], [4, EOS], [0.0, 0.0]) for _ in range(3)]
    batch = collate([make_trajectory("t", "g", steps)], ["g"])
    assert forward(make_lm(), batch, all_rows(batch), temperature=1.0).logits.shape == (6, VOCAB)


def test_weights_are_copied_out_and_back_in_place():
    model = make_lm(seed=0)
    kept, tensors = copy_weights(model), dict(model.named_parameters())
    load_weights(model, copy_weights(make_lm(seed=1)))
    assert_same_tensors(copy_weights(model), copy_weights(make_lm(seed=1)))
    assert_same_tensors(kept, copy_weights(make_lm(seed=0)))
    assert all(tensors[name] is parameter for name, parameter in model.named_parameters())


def test_parameters_that_are_frozen_do_not_count():
    model = make_lm()
    total = num_parameters(model)
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    assert num_parameters(model) == total - frozen.numel()


def test_a_model_is_loaded_with_its_tokenizer_in_fp32_and_evaluation_mode(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert tokenizer.decode(tokenizer("up")["input_ids"]) == "up"


def test_a_folder_without_a_model_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no model in .*nothing.*istar init-tiny"):
        load_model(tmp_path / "nothing")


def test_damaged_weights_are_named(tiny_folder, tmp_path):
    broken = shutil.copytree(tiny_folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ConfigError, match=r"cannot load the model in .*broken"):
        load_model(broken)


def test_a_damaged_model_description_is_named(tiny_folder, tmp_path):
    broken = shutil.copytree(tiny_folder, tmp_path / "broken")
    (broken / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot load the model in .*broken"):
        load_model(broken)


def test_a_tokenizer_without_a_chat_template_is_refused(tiny_folder, tmp_path):
    plain = shutil.copytree(tiny_folder, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="chat template"):
        load_model(plain)
