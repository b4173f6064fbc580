"""Plans of memory and work: counts against known totals, formulas against numbers worked out by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from builders import make_trajectory
from istar_envs.errors import ConfigError
from istar_trainer.batch import collate
from istar_trainer.config import ModelConfig, RunConfig
from istar_trainer.config_files import load_config
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.planning import memory, work
from istar_trainer.planning import plan as plan_module
from istar_trainer.planning.layout import (
    BYTES,
    Cast,
    Layout,
    Lora,
    Workload,
    read_cast,
    read_layout,
    read_workload,
)
from istar_trainer.planning.plan import PlanArgs, make_plan
from istar_trainer.planning.shapes import ModelShape, published_models, shape_from, shape_of, shape_of_run
from istar_trainer.records import Step
from istar_trainer.tiny import make_model

ROOT = Path(__file__).parents[2]
TOTALS = {
    "qwen2.5-0.5b-instruct": 494_032_768,
    "qwen2.5-1.5b-instruct": 1_543_714_304,
    "qwen2.5-3b-instruct": 3_085_938_688,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen2.5-vl-7b-instruct": 8_292_166_656,
    "llama-3.1-8b-instruct": 8_030_261_248,
    "smollm2-135m-instruct": 134_515_008,
}
SMALL = ModelShape(
    name="small",
    num_parameters=1000,
    body=600,
    head=200,
    layer=300,
    num_layers=2,
    hidden=10,
    intermediate=20,
    num_heads=2,
    query=8,
    key=4,
    vocab=50,
    linear=(("q_proj", 10, 8), ("v_proj", 10, 4), ("q_proj", 10, 8)),
)
TORCH = Layout()
PUBLISHED = sorted(path.name for path in ROOT.glob("configs/*_istar_*.yaml") if "tiny" not in path.name)


def small_work(*, grows: bool = False) -> Workload:
    return Workload.of(2, 4, steps=3, prompt=12, response=2, grows=grows)


def test_every_published_model_has_its_known_number_of_parameters():
    known = published_models()
    assert {name: shape_of(Path(name)).num_parameters for name in known} == TOTALS


def test_what_tokens_go_through_leaves_out_embeddings_and_head():
    shape = shape_of(Path("models/Qwen2.5-7B-Instruct"))
    layer = 3584 * (3584 + 512 + 512) + 3584 * 3584 + 3 * 3584 * 18944
    assert shape.body == 28 * layer
    assert shape.head == 152064 * 3584
    assert (shape.query, shape.key, shape.num_layers) == (3584, 512, 28)
    assert shape.layer == layer + (3584 + 512 + 512) + 2 * 3584


def test_a_folder_needs_only_its_configuration(tmp_path):
    Qwen2Config(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2).save_pretrained(
        tmp_path
    )
    expected = sum(p.numel() for p in Qwen2ForCausalLM(Qwen2Config.from_pretrained(tmp_path)).parameters())
    assert shape_of(tmp_path).num_parameters == expected


def test_the_tiny_model_is_counted_as_it_is_built():
    config = ModelConfig(vocab_size=400, hidden_size=32, num_layers=2, num_heads=4)
    model = make_model(400, hidden_size=32, num_layers=2, num_heads=4, eos_token_id=2, seed=0)
    assert shape_of_run(config).num_parameters == sum(p.numel() for p in model.parameters())


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'qwen2.5-7b-instrukt'.*qwen2.5-7b-instruct"):
        shape_of(Path("models/qwen2.5-7b-instrukt"))


@pytest.mark.parametrize("values", [{}, {"model_type": "nothing"}])
def test_a_configuration_that_is_no_model_is_named(values):
    with pytest.raises(ConfigError, match="in a place"):
        shape_from("x", values, "a place")


def test_a_broken_configuration_file_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        shape_of(tmp_path)


def test_an_adapter_has_rank_times_both_sides_of_every_matrix_it_is_on():
    assert SMALL.adapter_parameters(3, ["q_proj"]) == 3 * (18 + 18)
    assert SMALL.adapter_parameters(3, ()) == 3 * (18 + 14 + 18)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (TORCH, (4 * 100 + 4 * 50, 400, 800)),
        (Layout(width=2), (4 * 100 + 2 * 50, 400, 800)),
        (Layout(width=2, stage=1), (500, 400, 300)),
        (Layout(width=2, stage=2), (500, 100, 300)),
        (Layout(width=2, stage=3), (125, 100, 300)),
        (Layout(width=2, stage=3, offload="optimizer"), (125, 100, 0)),
        (Layout(width=2, stage=3, offload="all"), (0, 100, 0)),
    ],
    ids=["torch", "bf16 base", "ZeRO-1", "ZeRO-2", "ZeRO-3", "optimizer on the host", "weights too"],
)
def test_a_learner_holds_what_its_backend_spreads(layout, expected):
    held = memory.learner_bytes(100, 50, layout, gpus=4)
    assert (held.weights, held.gradients, held.optimizer) == expected


def test_every_model_of_a_run_is_held():
    cast = Cast(prm=True, follower=True, critic=True, reference=True)
    held = memory.held_by_models(SMALL, SMALL, cast, TORCH, 1)
    totals = {name: part.total for name, part in held.items()}
    assert totals == {
        "policy": 16_000,
        "PRM": 16_000,
        "running mean": 4_000,
        "critic": 16_000,
        "reference": 4_000,
    }


def test_a_shared_base_is_held_once():
    layout = Layout(width=2, lora=Lora(1, ("q_proj",)), shared_prm=True)
    held = memory.held_by_models(SMALL, SMALL, Cast(prm=True, reference=True), layout, 1)
    assert {name: part.total for name, part in held.items()} == {"policy": 2000 + 16 * 36, "PRM": 16 * 36}


def test_weights_that_are_spread_out_need_a_copy_to_sample_from():
    held = memory.held_by_models(SMALL, SMALL, Cast(), Layout(stage=3), 4)
    assert held["sampler's copy"].total == 4000
    assert set(memory.held_by_models(SMALL, SMALL, Cast(), Layout(stage=3, sampler="vllm"), 4)) == {"policy"}


def test_activations_are_those_of_every_layer_or_of_one_that_is_computed_again():
    layer = 8 * 10 + 4 * 4 + 4 * (40 + 16 + 8 + 80)
    last = 4 * 11 + 4 * 20
    assert memory.activation_bytes(SMALL, 3, TORCH) == 3 * (2 * layer + last)
    again = replace(TORCH, checkpointing=True)
    assert memory.activation_bytes(SMALL, 3, again) == 3 * (2 * 4 * 10 + layer + last)


def test_adapters_keep_their_inputs_in_fp32_besides():
    short_inputs = 10 * 10 * 2
    plain = memory.activation_bytes(SMALL, 1, Layout(width=2)) - short_inputs
    adapted = memory.activation_bytes(SMALL, 1, Layout(width=2, lora=Lora(3, ("q_proj",))))
    assert adapted - plain == 4 * 2 * (10 + 3)
    longer = memory.activation_bytes(SMALL, 1, Layout(lora=Lora(3, ("q_proj",))))
    assert longer - memory.activation_bytes(SMALL, 1, TORCH) == 4 * 2 * 3


def test_logits_exist_for_a_chunk_at_a_time():
    assert memory.logit_bytes(SMALL, 100, Layout(width=2)) == 100 * 50 * 12
    assert memory.logit_bytes(SMALL, 100, Layout(width=2, logits_mib=1)) == 100 * 50 * 12
    many = 2**20 // (4 * 50)
    assert memory.logit_bytes(SMALL, many + 1, Layout(width=2, logits_mib=1)) == many * 50 * 12
    qwen = shape_of(Path("qwen2.5-7b-instruct"))
    assert memory.logit_bytes(qwen, 10_000, Layout(logits_mib=512)) == 882 * 152_064 * 16


def test_a_micro_batch_holds_whole_rows_and_zero_3_gathers_layers():
    one, two = (
        memory.learning_bytes(SMALL, small_work(), TORCH, micro_batch_tokens=tokens) for tokens in (1, 28)
    )
    assert one == memory.activation_bytes(SMALL, 14, TORCH) + memory.logit_bytes(SMALL, 2, TORCH)
    assert two == 2 * one
    spread = replace(TORCH, stage=3)
    assert memory.learning_bytes(SMALL, small_work(), spread, micro_batch_tokens=1) == one + 4 * (600 + 200)


@pytest.mark.parametrize(("checkpointing", "matrices"), [(False, 600), (True, 300)])
def test_short_arithmetic_makes_short_copies_of_weights(checkpointing, matrices):
    layout = Layout(width=2, checkpointing=checkpointing)
    needed = memory.learning_bytes(SMALL, small_work(), layout, micro_batch_tokens=1)
    rest = memory.activation_bytes(SMALL, 14, layout) + memory.logit_bytes(SMALL, 2, layout)
    assert needed - rest == 2 * (matrices + 200)


def test_keys_and_values_are_kept_for_every_layer():
    assert memory.cache_bytes(SMALL, 7, 2) == 2 * 2 * 4 * 2 * 7
    shape = shape_of(Path("qwen2.5-7b-instruct"))
    assert memory.cache_bytes(shape, 1, 2) == 57_344  # 56 KiB a token, as vLLM reports for this model


def test_the_sampler_of_a_learner_holds_its_rows_at_most():
    wanted = small_work()
    cache = memory.cache_bytes(SMALL, 8 * 14, 4)
    reading, writing = 4 * 8 * 12 * (60 + 20), 8 * 50 * 20
    assert memory.sampling_bytes(SMALL, wanted, TORCH) == cache + max(reading, writing)
    half = memory.sampling_bytes(SMALL, wanted, TORCH, max_rows=4)
    assert memory.sampling_bytes(SMALL, wanted, TORCH) == 2 * half


def test_vllm_fits_as_many_sequences_as_its_share_leaves_room_for():
    layout = Layout(sampler="vllm", sampler_frac=0.5, tensor_parallel=2)
    room = memory.sampler_room(SMALL, small_work(), layout, gpus=4, gpu_bytes=4000)
    assert (room.share, room.weights) == (2000, 1000)
    assert room.per_sequence == 2 * 2 * 4 * 2 * 14 / 2
    assert (room.sequences, room.wanted) == (1000 // 224, 4)


def test_a_span_costs_two_operations_a_weight_and_four_for_each_token_it_looks_at():
    assert work.span_flops(SMALL, 3) == 2 * 600 * 3 + 4 * 2 * 8 * 4.5
    assert work.span_flops(SMALL, 3, before=10) == 2 * 600 * 3 + 4 * 2 * 8 * 34.5
    halves = work.span_flops(SMALL, 4) + work.span_flops(SMALL, 6, before=4)
    assert halves == work.span_flops(SMALL, 10)


def test_the_first_prompt_of_a_group_is_read_once():
    assert work.prompt_work(SMALL, small_work(), shares_prefix=False).tokens == 12 * (2 + 8 + 8)


def test_a_growing_dialogue_is_read_from_its_last_reply_on_where_the_cache_is_kept():
    grown = small_work(grows=True)
    assert grown.prompts == (4, 8, 12)
    assert work.prompt_work(SMALL, grown, shares_prefix=False).tokens == 2 * 4 + 8 * 8 + 8 * 12
    assert work.prompt_work(SMALL, grown, shares_prefix=True).tokens == 2 * 4 + 8 * 2 + 8 * 2


def test_merged_rows_of_a_growing_dialogue_are_computed_as_the_last_one():
    merged = Workload.of(2, 4, steps=3, prompt=12, response=2, grows=True, merges=True)
    rows = work.row_work("learn", "policy", SMALL, merged, times=3)
    assert rows.tokens == 3 * 8 * 14
    assert rows.flops == 3 * 8 * (work.span_flops(SMALL, 14) + 2 * 200 * 6)
    one = memory.learning_bytes(SMALL, merged, TORCH, micro_batch_tokens=1)
    assert one == memory.activation_bytes(SMALL, 14, TORCH) + memory.logit_bytes(SMALL, 6, TORCH)
    assert memory.learning_bytes(SMALL, merged, TORCH, micro_batch_tokens=10_000) == 8 * one
    assert not Workload.of(2, 4, steps=3, prompt=12, response=2, grows=False, merges=True).merges


def test_dialogues_that_the_local_sampler_keeps_are_bounded_and_no_more_than_there_are():
    plain = memory.sampling_bytes(SMALL, small_work(), TORCH)
    kept = memory.sampling_bytes(SMALL, small_work(), replace(TORCH, kept_mib=1))
    assert kept - plain == memory.cache_bytes(SMALL, 8 * 14, 4)
    many = Workload.of(100, 100, steps=3, prompt=12, response=2, grows=True)
    grown = memory.sampling_bytes(SMALL, many, replace(TORCH, kept_mib=1))
    assert grown - memory.sampling_bytes(SMALL, many, TORCH) == 2**20


def test_replies_and_rows_count_every_step_of_every_trajectory():
    assert work.reply_work(SMALL, small_work()).tokens == 8 * 3 * 2
    rows = work.row_work("learn", "policy", SMALL, small_work(), times=3)
    assert rows.tokens == 3 * 8 * 3 * 14
    assert rows.flops == 3 * 8 * 3 * (work.span_flops(SMALL, 14) + 2 * 200 * 2)


@pytest.mark.parametrize(
    ("layout", "cost"),
    [(TORCH, 3), (replace(TORCH, checkpointing=True), 4), (replace(TORCH, lora=Lora(8)), 2)],
)
def test_learning_costs_a_backward_pass_and_what_is_computed_again(layout, cost):
    assert work.learning_cost(layout) == cost


def test_every_pass_of_an_iteration_is_listed():
    config = RunConfig.model_validate(
        {
            "algorithm": {"type": "ppo", "loss": {"kl": {}}},
            "credit": {"type": "istar", "center": "policy_kl"},
            "prm": {"updates_per_iteration": 2},
            "learner": {"epochs": 3},
        }
    )
    cast = read_cast(config)
    passes = work.iteration_work(config, SMALL, SMALL, cast, layout=TORCH, workload=small_work())
    one = work.row_work("score", "policy", SMALL, small_work()).tokens
    amounts = [(p.name, p.model, p.tokens / one) for p in passes[2:]]
    assert amounts == [
        ("score", "policy", 1),
        ("score", "reference", 1),
        ("compare", "policy", 1),
        ("score", "PRM", 3),
        ("learn", "PRM", 6),
        ("score", "critic", 1),
        ("learn", "critic", 9),
        ("learn", "policy", 9),
    ]


@pytest.mark.parametrize(
    ("tree", "cast"),
    [
        ({"credit": "none"}, Cast()),
        ({"credit": "istar"}, Cast(prm=True)),
        ({"credit": "prime"}, Cast(prm=True, reference=True)),
        ({"credit": "istar", "prm": {"reference": "ema"}}, Cast(prm=True, follower=True)),
        ({"credit": "istar", "prm": {"score": "centered_sum"}}, Cast(prm=True, centers=True)),
        ({"credit": "istar_official"}, Cast(reference=True)),
        ({"credit": {"type": "sum"}, "algorithm": "ppo"}, Cast(prm=True, critic=True)),
    ],
)
def test_the_models_of_a_run_follow_from_its_method(tree, cast):
    assert read_cast(RunConfig.model_validate(tree)) == cast


def test_the_defaults_are_one_process_with_whole_models():
    assert read_layout(RunConfig()) == replace(TORCH, logits_mib=512)


def test_the_layout_follows_from_model_learner_and_sampler():
    tree = {
        "model": {"lora": {"rank": 8}, "dtype": "bfloat16", "gradient_checkpointing": True},
        "learner": {"backend": "deepspeed", "deepspeed": {"stage": 2, "offload": "optimizer"}},
        "sampler": {"type": "vllm", "mode": "engine", "sleep": True, "gpu_memory_utilization": 0.4},
    }
    layout = read_layout(RunConfig.model_validate(tree))
    assert (layout.lora.rank, layout.width, layout.checkpointing) == (8, 2, True)
    assert (layout.stage, layout.offload, layout.shared_prm) == (2, "optimizer", False)
    assert (layout.sampler, layout.sampler_frac, layout.colocated, layout.sleeps) == ("vllm", 0.4, True, True)


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        ({"kwargs": {"max_steps": 7}}, 7),
        ({}, 15),
        ({"id": "istar/Sotopia-v0", "kwargs": {"max_turns": 9}}, 5),
        ({"id": "istar/Sotopia-v0"}, 10),
    ],
)
def test_the_environment_limits_the_steps(env, steps):
    assert len(read_workload(RunConfig.model_validate({"env": env})).prompts) == steps


@contextmanager
def kept_for_backward(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Sizes of what autograd keeps meanwhile, weights left out, by place."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # so that no place is used twice

    def note(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        if (place := tensor.untyped_storage().data_ptr()) not in own:
            sizes[place] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield sizes


def test_what_is_planned_for_a_tiny_model_is_what_it_takes():
    shape = shape_of_run(ModelConfig(vocab_size=300, hidden_size=32, num_layers=2, num_heads=4))
    model = make_model(300, hidden_size=32, num_layers=2, num_heads=4, eos_token_id=2, seed=0)
    learner = TorchLearner(model, Optimization(1e-3, 0.0, 1.0), temperature=1.0, micro_batch_tokens=10_000)
    steps = [Step([5 + i, *range(3, 50)], [7 + i, *range(20, 29)], [0.0] * 10) for i in range(4)]
    batch = collate([make_trajectory("t", "g", steps)], ["g"])
    with kept_for_backward(model) as kept:
        learner.backward(batch, lambda out, _rows: -out.logprobs().sum())
    gradients = sum(p.grad.nbytes for p in model.parameters())
    learner.step()
    moments = [s[name] for s in learner.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = memory.learner_bytes(shape.num_parameters, 0, TORCH, gpus=1)
    assert held.weights == sum(p.nbytes for p in model.parameters())
    assert held.gradients == gradients
    assert held.optimizer == sum(m.nbytes for m in moments)
    measured = sum(kept.values())
    tokens, responses = 4 * 58, 4 * 10
    planned = memory.activation_bytes(shape, tokens, TORCH) + memory.logit_bytes(shape, responses, TORCH)
    assert measured <= planned <= 1.3 * measured  # logits' gradients are planned, but not saved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_planned_activations_are_those_that_autograd_keeps(dtype):
    shape = shape_of_run(ModelConfig(vocab_size=300, hidden_size=32, num_layers=4, num_heads=4))
    model = make_model(300, hidden_size=32, num_layers=4, num_heads=4, eos_token_id=2, seed=0)
    ids = torch.arange(256).reshape(4, 64)
    layout = Layout(width=BYTES[dtype])
    short = dtype == "bfloat16"
    with kept_for_backward(model) as kept, torch.autocast("cpu", torch.bfloat16, enabled=short):
        model.model(input_ids=ids, use_cache=False)
    planned = memory.activation_bytes(shape, 256, layout) + 2 * shape.body * short
    assert planned == pytest.approx(sum(kept.values()), rel=0.03)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_can_be_planned(name):
    config = load_config(ROOT / "configs" / name)
    plan = make_plan(config, PlanArgs(gpus=8))
    assert plan.policy.num_parameters == TOTALS[Path(config.model.path).name]
    assert plan.memory.peak > 0
    assert sum(part.flops for part in plan.work) > 0
    if plan.problems:
        assert min(plan.alternatives.values()) < plan.gpu_bytes


def test_expected_lengths_change_the_work_and_not_the_memory():
    config = load_config(ROOT / "configs/webshop_istar_qwen7b.yaml")
    limit, expected = (
        make_plan(config, args)
        for args in (PlanArgs(), PlanArgs(steps=6, prompt_tokens=900, response_tokens=150))
    )
    assert expected.memory == limit.memory
    assert expected.work[1].tokens == 128 * 6 * 150


def with_vllm(monkeypatch, **options) -> None:
    monkeypatch.setattr(
        plan_module, "read_layout", lambda _config: Layout(width=2, sampler="vllm", **options)
    )


@pytest.mark.parametrize(
    ("options", "args", "gpus", "peak_holds_share"),
    [
        ({"tensor_parallel": 2}, {}, 6, False),
        ({}, {"sampler_gpus": 4}, 4, False),
        ({}, {"sampler_gpus": 0}, 8, True),
        ({"colocated": True}, {}, 8, True),
    ],
)
def test_vllm_has_gpus_of_its_own_or_a_share_of_all(monkeypatch, options, args, gpus, peak_holds_share):
    with_vllm(monkeypatch, **options)
    plan = make_plan(RunConfig(), PlanArgs(gpus=8, **args))
    assert plan.learner_gpus == gpus
    assert (plan.memory.sampler > 0) == peak_holds_share
    assert plan.room.sequences > 0


def test_a_sampler_that_sleeps_takes_its_share_only_while_it_samples(monkeypatch):
    with_vllm(monkeypatch, colocated=True, sleeps=True)
    plan = make_plan(RunConfig(), PlanArgs(gpu_memory_gb=10))
    assert plan.memory.sampler == 0
    assert plan.memory.moments["vLLM samples"] == 9 * 1024**3


def test_a_sampler_that_leaves_no_gpu_to_train_is_refused(monkeypatch):
    with_vllm(monkeypatch)
    with pytest.raises(ConfigError, match="leave none to train"):
        make_plan(RunConfig(), PlanArgs(gpus=1))


def test_a_share_without_room_for_the_weights_is_a_problem(monkeypatch):
    with_vllm(monkeypatch, colocated=True, sampler_frac=0.1)
    config = load_config(ROOT / "configs/webshop_istar_qwen7b.yaml")
    [*_, text] = make_plan(config, PlanArgs(gpus=8)).problems
    assert "does not hold 14.2 GiB of weights" in text
    assert "sampler.gpu_memory_utilization" in text
