"""The critic: values of states from the policy's own body, fitted to returns."""

import pytest
import torch
from torch import Tensor

from builders import RecordingLearner, Scene, assert_same_tensors, gradients, make_lm, make_scene
from istar_trainer.config import LearnerConfig
from istar_trainer.critic import fit_critic, state_values, with_value_head
from istar_trainer.gae import first_token
from istar_trainer.learner import Optimization
from istar_trainer.losses import clipped_value_loss
from istar_trainer.metrics import METRICS
from istar_trainer.weights import load_model


def make_critic(*, lr: float = 1e-2, micro_batch_tokens: int = 10_000, seed: int = 0) -> RecordingLearner:
    """A critic whose head is not 0, so that its values differ from token to token."""
    model = with_value_head(make_lm())
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.randn(1, 16, generator=torch.Generator().manual_seed(seed)))
    return RecordingLearner(
        model, Optimization(lr, 0.0, 1e9), temperature=1.0, micro_batch_tokens=micro_batch_tokens
    )


def fit(critic: RecordingLearner, scene: Scene, returns: Tensor, **options) -> dict[str, float]:
    settings = {"mask": scene.batch.response_mask, "clip": 0.5, **options}
    config = LearnerConfig(epochs=settings.pop("epochs", 1), minibatches=settings.pop("minibatches", 1))
    old = settings.pop("old_values", None)
    old_values = state_values(critic, scene.batch) if old is None else old
    return fit_critic(critic, scene.batch, old_values, returns, config=config, seed=0, **settings)


def returns_of(scene: Scene) -> Tensor:
    return torch.where(scene.batch.response_mask, torch.linspace(-1, 2, scene.batch.input_ids.shape[1]), 0.0)


def test_a_fresh_critic_expects_nothing(tiny_folder):
    model = with_value_head(load_model(tiny_folder)[0])
    ids = torch.arange(3, 13)[None]
    assert model(input_ids=ids).logits.shape == (1, 10, 1)
    assert model(input_ids=ids).logits.eq(0).all()
    assert model.get_input_embeddings().weight.ne(0).any()


def test_the_head_is_where_the_model_is():
    assert with_value_head(make_lm().to("meta")).get_output_embeddings().weight.device.type == "meta"


def test_the_value_at_a_token_is_that_of_the_state_before_it():
    scene, critic = make_scene(), make_critic()
    values = state_values(critic, scene.batch)
    assert values[~scene.batch.response_mask].eq(0).all()
    for row in range(len(scene.batch)):
        ids = scene.batch.input_ids[row][scene.batch.attention_mask[row]]
        outputs = critic.model(input_ids=ids[None]).logits[0, :, 0]
        num_response = int(scene.batch.response_mask[row].sum())
        expected = outputs[len(ids) - num_response - 1 : -1]
        torch.testing.assert_close(values[row][scene.batch.response_mask[row]], expected, rtol=0, atol=1e-4)


def test_the_token_itself_is_not_seen():
    scene, critic = make_scene(), make_critic()
    first = first_token(scene.batch.response_mask)
    before = state_values(critic, scene.batch)
    scene.batch.input_ids[first] = 5
    assert torch.equal(state_values(critic, scene.batch)[first], before[first])


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss"),
    [
        (1.0, 1.0, 3.0, 0.5, 2.0),  # not moved: ½·2²
        (2.0, 1.0, 3.0, 0.5, 1.125),  # held at 1.5: ½·1.5² beats ½·1²
        (2.0, 1.0, 3.0, None, 0.5),
        (0.0, 1.0, 3.0, 0.5, 4.5),  # moved away: its own error is the larger one
        (-1.0, 0.0, 0.0, 0.5, 0.5),
    ],
)
def test_clipped_value_loss_by_hand(value, old, target, clip, loss):
    tensors = (torch.tensor([[number]], dtype=torch.float64) for number in (value, old, target))
    assert clipped_value_loss(*tensors, clip=clip).item() == pytest.approx(loss)


def test_one_update_follows_the_gradient_of_the_mean_squared_error():
    scene = make_scene()
    returns = returns_of(scene)
    critic = make_critic(micro_batch_tokens=30)
    metrics = fit(critic, scene, returns)
    reference = make_critic()
    mask = scene.batch.response_mask
    out = reference.forward(scene.batch, torch.arange(len(scene.batch)))
    loss = 0.5 * (out.expand(out.logits[:, 0]) - returns)[mask].square().mean()
    loss.backward()
    assert metrics["critic/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert_same_tensors(critic.gradients[0], gradients(reference.model), atol=1e-4)


def test_only_asked_tokens_are_learnt():
    scene = make_scene()
    returns = returns_of(scene)
    asked = first_token(scene.batch.response_mask)
    critic, other = make_critic(), make_critic()
    fit(critic, scene, returns, mask=asked)
    fit(other, scene, torch.where(asked, returns, 1e6), mask=asked)
    assert_same_tensors(other.snapshot(), critic.snapshot())


def test_a_value_that_has_left_its_clip_range_towards_the_return_has_no_gradient():
    scene, critic = make_scene(), make_critic()
    values = state_values(critic, scene.batch)
    metrics = fit(critic, scene, values + 1.0, old_values=values - 2.0)
    assert metrics["critic/grad_norm"] == 0.0


def test_values_come_nearer_to_the_returns():
    scene, critic = make_scene(), make_critic(lr=1e-2)
    returns = returns_of(scene)
    losses = [fit(critic, scene, returns, clip=None, epochs=2, minibatches=3) for _ in range(15)]
    assert losses[-1]["critic/loss"] < 0.3 * losses[0]["critic/loss"]
    assert losses[0]["critic/explained_variance"] < 0 < losses[-1]["critic/explained_variance"]
    assert len(critic.gradients) == 15 * 6
    assert losses[0].keys() <= METRICS.keys()


def test_explained_variance_by_hand():
    scene, critic = make_scene(), make_critic()
    mask = scene.batch.response_mask
    returns = returns_of(scene)
    noise = 0.5 * torch.where(mask, returns.roll(1, 1), 0.0)
    metrics = fit(critic, scene, returns, old_values=returns - noise)
    expected = 1 - noise[mask].double().var(correction=0) / returns[mask].double().var(correction=0)
    assert metrics["critic/explained_variance"] == pytest.approx(float(expected), abs=1e-6)
    assert metrics["critic/return_mean"] == pytest.approx(float(returns[mask].mean()), abs=1e-6)
    assert metrics["critic/value_mean"] == pytest.approx(float((returns - noise)[mask].mean()), abs=1e-6)
