"""Adapters: two models on one base in memory are the two models they would be apart."""

import copy
import json
import sys

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from builders import EOS, FLOAT32, RecordingLearner, assert_same_tensors, make_lm, make_scene
from istar_envs.errors import ConfigError
from istar_trainer.config import RunConfig
from istar_trainer.config_credits import PrmConfig
from istar_trainer.config_lora import LoraConfig
from istar_trainer.footprint import recompute_layers
from istar_trainer.learner import Optimization, TorchModel
from istar_trainer.lora import AdaptedModel, Backbone
from istar_trainer.prm import ImplicitPrm
from istar_trainer.sampler import LocalSampler, Request
from istar_trainer.weights import load_model, num_parameters

LORA = LoraConfig(rank=3, alpha=6.0)


def make_backbone(dtype: torch.dtype = torch.float32, **options) -> Backbone:
    return Backbone(make_lm(layers=2).to(dtype), LoraConfig(**{"rank": 3, "alpha": 6.0, **options}), seed=0)


def learner_of(model: AdaptedModel, *, micro_batch_tokens: int = 30) -> RecordingLearner:
    return RecordingLearner(
        model, Optimization(1e-2, 0.1, 1.0), temperature=0.7, micro_batch_tokens=micro_batch_tokens
    )


def shake(learner: RecordingLearner, seed: int) -> None:
    """Give an adapter weights that change every layer."""
    generator = torch.Generator().manual_seed(seed)
    learner.load({n: torch.randn(v.shape, generator=generator) * 0.3 for n, v in learner.snapshot().items()})


def pair_of_learners(
    *, is_shared: bool, recomputes: bool = False
) -> tuple[RecordingLearner, RecordingLearner]:
    """A policy and a reward model with fixed adapters, on one base or on two equal ones."""
    first = make_backbone()
    second = first if is_shared else make_backbone()
    for backbone in {id(b): b for b in (first, second)}.values():
        if recomputes:
            recompute_layers(backbone.model, backbone.as_now)
    learners = learner_of(first.adapted()), learner_of(second.adapted())
    for seed, learner in enumerate(learners):
        shake(learner, seed)
    return learners


def iterate(policy: RecordingLearner, reward: RecordingLearner, score: str) -> list:
    """Score, learn from pairs, and let the policy learn; everything that came out."""
    scene = make_scene()
    old = policy.logprobs(scene.batch)
    prm = ImplicitPrm(reward, policy, PrmConfig(score=score, anchor="ema"), with_centers=True)
    found: list = [old]
    for _ in range(2):
        prm.anchor()
        scores = prm.score(scene.batch, old)
        found += [scores.rewards, scores.centers, scores.log_ratios]
        found.append(prm.update(scene.batch, old, scene.pairs, len(scene.outcomes), scores))
        policy.backward(scene.batch, lambda out, _rows: -out.logprobs().sum() / 40)
        policy.step()
        old = policy.logprobs(scene.batch)
    return [*found, *reward.gradients, *policy.gradients, reward.snapshot(), policy.snapshot()]


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("score", ["sum", "centered_sum"])
def test_adapters_that_share_a_base_learn_what_two_copies_of_it_learn(score, recomputes):
    apart = iterate(*pair_of_learners(is_shared=False), score)
    shared = iterate(*pair_of_learners(is_shared=True, recomputes=recomputes), score)
    assert len(apart) == len(shared) == 15
    for one, other in zip(shared, apart, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
        else:
            assert one.keys() == other.keys()
            assert all(torch.equal(torch.as_tensor(one[k]), torch.as_tensor(other[k])) for k in one)


def test_the_base_stays_as_it_is_and_is_held_once():
    policy, reward = pair_of_learners(is_shared=True)
    base = policy.model.base
    before = {n: p.clone() for n, p in base.named_parameters() if "lora" not in n}
    iterate(policy, reward, "sum")
    assert reward.model.base is base
    assert_same_tensors({n: p.detach() for n, p in base.named_parameters() if "lora" not in n}, before)


def test_a_model_with_an_adapter_counts_snapshots_and_restores_the_adapter_alone():
    policy, reward = pair_of_learners(is_shared=True)
    snapshot = policy.snapshot()
    assert all("lora_" in name for name in snapshot)
    assert sum(value.numel() for value in snapshot.values()) == num_parameters(policy.model)
    assert snapshot.keys() == reward.snapshot().keys()
    before, kept = reward.snapshot(), copy.deepcopy(snapshot)
    shake(policy, seed=9)
    assert_same_tensors(reward.snapshot(), before)
    policy.load(kept)
    assert_same_tensors(policy.snapshot(), kept)


def test_a_new_adapter_changes_nothing_and_the_bare_base_never_does():
    scene, backbone = make_scene(), make_backbone()
    plain = TorchModel(make_lm(layers=2), temperature=0.7, micro_batch_tokens=30).logprobs(scene.batch)
    policy = learner_of(backbone.adapted())
    assert torch.equal(policy.logprobs(scene.batch), plain)
    shake(policy, seed=1)
    reference = TorchModel(backbone.bare(), temperature=0.7, micro_batch_tokens=30)
    assert not torch.allclose(policy.logprobs(scene.batch), plain, atol=0.01)
    assert torch.equal(reference.logprobs(scene.batch), plain)


def test_the_sampler_draws_from_the_policys_adapter_whichever_was_used_last():
    policy, reward = pair_of_learners(is_shared=True)
    scene = make_scene()
    sampler = LocalSampler(policy.model, eos_token_id=EOS, max_new_tokens=5)
    requests = [Request((3, 4, 5), seed) for seed in range(4)]
    expected = sampler.generate(requests, temperature=0.7)
    reward.logprobs(scene.batch)
    sampler.load(policy.model.state_dict(), 1)
    assert sampler.generate(requests, temperature=0.7) == expected
    alone = LocalSampler(pair_of_learners(is_shared=False)[0].model, eos_token_id=EOS, max_new_tokens=5)
    assert alone.generate(requests, temperature=0.7) == expected


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_a_saved_model_has_the_adapter_worked_in_and_beside_it(tmp_path, tiny_folder):
    from peft import PeftModel

    scene = make_scene()
    backbone = Backbone(load_model(tiny_folder)[0], LORA, seed=0)
    backbone.adapted()
    policy = learner_of(backbone.adapted())
    shake(policy, seed=1)
    policy.model.save_pretrained(tmp_path)
    load_model(tiny_folder)[1].save_pretrained(tmp_path)
    expected = policy.logprobs(scene.batch)
    merged = load_model(tmp_path)[0]
    assert merged.state_dict().keys() == load_model(tiny_folder)[0].state_dict().keys()
    beside = PeftModel.from_pretrained(load_model(tiny_folder)[0], tmp_path / "adapter")
    for model in (merged, beside):
        found = TorchModel(model, temperature=0.7, micro_batch_tokens=1000).logprobs(scene.batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=FLOAT32)
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["r"] == 3
    assert len(load_file(tmp_path / "adapter/adapter_model.safetensors")) == len(policy.snapshot())


def test_frozen_weights_in_bfloat16_carry_adapters_in_fp32():
    policy = learner_of(make_backbone(torch.bfloat16).adapted())
    shake(policy, seed=1)
    scene = make_scene()
    policy.backward(scene.batch, lambda out, _rows: -out.logprobs().sum() / 40)
    policy.step()
    kept = {p.dtype for p in policy.model.base.parameters() if not p.requires_grad}
    assert kept == {torch.bfloat16}
    assert {value.dtype for value in policy.snapshot().values()} == {torch.float32}
    assert {value.dtype for value in policy.gradients[0].values()} == {torch.float32}


def test_only_the_named_layers_are_adapted():
    snapshot = learner_of(make_backbone(target_modules=("q_proj", "v_proj")).adapted()).snapshot()
    assert {name.split(".")[4] for name in snapshot} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("name", "problem"), [("no_such", "no_such.*cannot be adapted"), ("lm_head", "lm_head.*output head")]
)
def test_layers_that_cannot_be_adapted_are_refused(name, problem):
    with pytest.raises(ConfigError, match=f"model.lora.target_modules.*{problem}"):
        make_backbone(target_modules=(name,)).adapted()


def test_without_peft_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"istar-trainer\[peft\]"):
        make_backbone().adapted()


@pytest.mark.parametrize(
    ("prm", "deepspeed", "message"),
    [
        ({"backbone": "shared"}, {"stage": 1}, "not two engines of DeepSpeed"),
        ({}, {"stage": 3}, "use stage 1 or 2"),
    ],
)
def test_what_adapters_and_deepspeed_cannot_do_together_is_refused(prm, deepspeed, message):
    learner = {"backend": "deepspeed", "deepspeed": deepspeed}
    with pytest.raises(ValidationError, match=message):
        RunConfig.model_validate({"model": {"lora": {}}, "prm": prm, "learner": learner})
