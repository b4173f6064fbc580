"""The warm start: what is demonstrated, and when cloning stops."""

import logging

import pytest
import torch

import istar_envs
from builders import make_learner
from istar_envs.errors import ConfigError
from istar_trainer.config import EnvConfig, WarmStartConfig
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.records import Step
from istar_trainer.sft import demonstrate, demonstration_batch, warm_start
from istar_trainer.weights import load_model

STEPS = [Step([3, 4, k], [k, 2], [0.0, 0.0]) for k in range(5, 15)]


def make_config(**options) -> WarmStartConfig:
    return WarmStartConfig(
        **{"batch_size": 5, "max_epochs": 4, "eval_every": 2, "target_success": 0.5, **options}
    )


def run(config: WarmStartConfig, successes=(0.0,) * 100, *, seed: int = 0, lr: float = 1e-2):
    learner, looks, values = make_learner(lr=lr), [], iter(successes)
    success = warm_start(
        learner,
        STEPS,
        config,
        seed=seed,
        dev_success=lambda: next(values),
        report=lambda update, metrics: looks.append((update, metrics)),
    )
    return success, looks, learner


@pytest.mark.parametrize(("template", "window"), [("bare-v1", 0), ("think-v1", 2), ("act-v1", None)])
def test_demonstrations_solve_their_tasks_in_the_format_of_the_template(tiny_tokenizer, template, window):
    env = istar_envs.make("istar/Sokoban-v0", min_moves=3, max_moves=3)
    config = EnvConfig(template=template, window=window)
    steps = demonstrate(env, tiny_tokenizer, config, WarmStartConfig(episodes=3), seed=0)
    replies = [tiny_tokenizer.decode(s.response_ids) for s in steps]
    assert all(reply.endswith("</action><|im_end|>") for reply in replies)
    assert all(reply.startswith("<think>…</think><action>") == (template == "think-v1") for reply in replies)
    assert len(steps) == 9
    for step in steps:
        assert len(step.sampler_logprobs) == len(step.response_ids)
    if window is None:
        whole = [*steps[0].prompt_ids, *steps[0].response_ids]
        assert list(steps[1].prompt_ids[: len(whole)]) == whole


def test_demonstrations_depend_on_the_seed_only(tiny_tokenizer):
    env = istar_envs.make("istar/Sokoban-v0")
    one, again, other = (
        demonstrate(env, tiny_tokenizer, EnvConfig(), WarmStartConfig(episodes=2), seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


def test_the_rule_shopper_can_demonstrate_where_there_is_one(tiny_tokenizer):
    env = istar_envs.make("istar/WebShop-v0", tagger="light", page_size=1)
    rule = WarmStartConfig(episodes=4, demonstrator="rule")
    steps = demonstrate(env, tiny_tokenizer, EnvConfig(), rule, seed=0)
    replies = [tiny_tokenizer.decode(s.response_ids) for s in steps]
    assert sum("search[" in reply for reply in replies) == sum("buy now" in reply for reply in replies) > 0
    assert not any("next >" in reply for reply in replies)  # the oracle turns pages, the rule does not
    with pytest.raises(ConfigError, match=r'Sokoban-v0 has no demonstrator "rule"\. Use warm_start'):
        demonstrate(istar_envs.make("istar/Sokoban-v0"), tiny_tokenizer, EnvConfig(), rule, seed=0)


def test_a_batch_of_demonstrations_holds_every_step():
    batch = demonstration_batch(STEPS)
    assert len(batch) == len(STEPS)
    assert batch.response_mask.sum() == 20
    assert batch.weights.eq(1).all()


def test_cloning_stops_at_the_first_look_that_reaches_the_target():
    success, looks, learner = run(make_config(), (0.1, 0.5, 0.9))
    assert success == 0.5
    assert [update for update, _ in looks] == [2, 4]
    assert [metrics["sft/dev_success_rate"] for _, metrics in looks] == [0.1, 0.5]
    assert len(learner.gradients) == 4


def test_cloning_ends_after_the_allowed_epochs_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        success, looks, learner = run(make_config(max_epochs=2.5))
    assert success == 0.0
    assert len(learner.gradients) == 5  # 2.5 epochs of 10 steps in batches of 5
    assert [update for update, _ in looks] == [2, 4, 5]
    assert "below warm_start.target_success=0.500 after 2.5 epochs" in caplog.text


def test_every_epoch_goes_over_every_demonstration_once():
    _, _, learner = run(make_config(max_epochs=1, batch_size=10), lr=0.0)
    batch = demonstration_batch(STEPS)
    fresh = make_learner()
    fresh.backward(batch, lambda out, _rows: -out.logprobs().sum() / 20)
    expected = {name: p.grad for name, p in fresh.model.named_parameters()}
    for name, gradient in learner.gradients[0].items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-6)


def test_the_loss_falls_and_is_the_mean_over_the_updates_since_the_last_look():
    _, looks, _ = run(make_config(max_epochs=20, eval_every=10), lr=1e-2)
    losses = [metrics["sft/loss"] for _, metrics in looks]
    assert losses[-1] < losses[0] / 2


def test_equal_seeds_give_equal_weights_and_other_seeds_other_ones():
    one, again, other = (run(make_config(), seed=seed)[2].snapshot() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_tiny_model_learns_to_answer_in_the_experts_words(tiny_folder):
    model, tokenizer = load_model(tiny_folder)
    learner = TorchLearner(model, Optimization(1e-2, 0.0, 1.0), temperature=1.0, micro_batch_tokens=100_000)
    env = istar_envs.make("istar/Sokoban-v0", max_moves=3)
    steps = demonstrate(env, tokenizer, EnvConfig(), WarmStartConfig(episodes=30), seed=0)
    config = make_config(batch_size=32, max_epochs=40, eval_every=20)
    seen: list[float] = []
    warm_start(
        learner,
        steps,
        config,
        seed=0,
        dev_success=lambda: 0.0,
        report=lambda _, m: seen.append(m["sft/loss"]),
    )
    # of five reply tokens only the word is uncertain: ln 4 / 5 = 0.28 at most
    assert seen[-1] < 0.5 < seen[0]


def test_the_learning_rate_can_fall_to_a_share_of_itself():
    _, _, learner = run(make_config(final_lr_frac=0.2), lr=1e-2)
    (group,) = learner.optimizer.param_groups
    assert group["lr"] == pytest.approx(1e-2 * (1 - 0.8 * 7 / 8))
