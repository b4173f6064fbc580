"""A whole run: tiny model → warm start → evaluation → training → evaluation → report.

Every stage leaves a folder or a line behind and is skipped when that is there already, so a run
that was killed anywhere goes on with ``resume``.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import torch

from istar_envs.templates import load_template
from istar_trainer.config import RunConfig
from istar_trainer.config_credits import OracleCredit, methods_of
from istar_trainer.distributed.ranks import from_main, is_main
from istar_trainer.distributed.sharing import open_folder, open_log
from istar_trainer.errors import CheckpointMismatch
from istar_trainer.evaluate import evaluate, expert_baseline, listed_tasks, random_baseline
from istar_trainer.factories import make_env, make_learner, make_players, make_sampler
from istar_trainer.faults import writing
from istar_trainer.folder import RunFolder
from istar_trainer.judging import check_judging
from istar_trainer.learner import Optimization, TorchLearner
from istar_trainer.lora import AdaptedModel
from istar_trainer.oracle import require_optimum
from istar_trainer.pictures import save_tokenizer
from istar_trainer.progress import Progress
from istar_trainer.report import build_report
from istar_trainer.sealed import SEAL, damage, seal
from istar_trainer.setup import Run, make_run
from istar_trainer.sft import demonstrate, warm_start
from istar_trainer.tiny import init_tiny
from istar_trainer.train import train
from istar_trainer.weights import num_parameters

logger = logging.getLogger(__name__)


def run_training(config: RunConfig, *, resume: bool, progress: Progress) -> Path:
    """Carry a run out, or on.

    Args:
        config: The configuration.
        resume: Go on with what is in ``config.run_dir``.
        progress: Display.

    Returns:
        Path of the report.

    Raises:
        IstarError: If a stage cannot be carried out; what was written stays.
    """
    use_threads(config.threads, device=config.model.device)
    check_names(config)
    folder = open_folder(config, resume=resume)
    start = prepare_policy(config, folder, progress)
    run = make_run(config, folder, start, progress, resume=resume)
    folder.add_facts(num_parameters=num_parameters(run.policy.model))
    try:
        found = from_main(lambda: folder.records("eval.jsonl"), "reading of evaluations")
        labels = {record["label"]: record for record in found}
        if config.eval.test_tasks and "before" not in labels:
            labels["before"] = evaluate_test(run, "before")
        progress.start(config.iterations, completed=run.iteration)
        train(run)
        save_policy(run, start)
        if config.eval.test_tasks and "after" not in labels:
            labels["after"] = evaluate_test(run, "after")
    finally:
        run.close()
    if config.eval.test_tasks:
        progress.summary_table([labels["before"], labels["after"]])
    return from_main(lambda: build_report(folder.path), "writing of the report")


def use_threads(threads: int, *, device: str = "cpu") -> None:
    """Set torch's threads; on CPUs, ask it for results that can be repeated bit for bit."""
    if threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(device == "cpu")


def check_names(config: RunConfig) -> None:
    """Open what the configuration names, so that a misspelt name leaves no run folder behind.

    Raises:
        IstarError: If the environment, its options, the template or the judge do not exist, or the
            environment lacks what the credit method needs.
    """
    load_template(config.env.template)
    env = make_env(config.env, "train")
    check_judging(config, env)
    if any(isinstance(method, OracleCredit) for method in methods_of(config.credit)):
        require_optimum(env)
    env.close()


def prepare_policy(config: RunConfig, folder: RunFolder, progress: Progress) -> Path:
    """Return the folder of the policy that RL starts from; made on the first call.

    Args:
        config: Model and warm start.
        folder: Where ``model/`` and ``warm_start/`` go.
        progress: Display.
    """
    model = Path(config.model.path) if config.model.path else folder.path / "model"
    if config.model.path is None:
        make_once(model, lambda out: from_main(lambda: _init(config, out), "making of the model"))
    if not config.warm_start.enabled:
        return model
    warm = folder.path / "warm_start"
    make_once(warm, lambda out: clone_expert(config, model, out, progress))
    return warm


def make_once(target: Path, make: Any) -> None:
    """Make a folder completely or not at all; do nothing if it is there.

    Args:
        target: The folder.
        make: Makes it at a path, on all processes; the main one writes.
    """
    if from_main(lambda: _is_made(target), f"looking for {target.name}"):
        return
    partial = target.with_name(f".{target.name}.part")
    from_main(lambda: shutil.rmtree(partial, ignore_errors=True), f"clearing the way for {target.name}")
    with writing(target):
        make(partial)
    from_main(lambda: _complete(partial, target), f"completion of {target.name}")


def clone_expert(config: RunConfig, model_path: Path, out: Path, progress: Progress) -> None:
    """Warm-start a model on expert demonstrations and save it.

    Args:
        config: Environment, warm start, seed.
        model_path: Where the model comes from.
        out: Where the cloned policy goes, with its own ``metrics.jsonl``.
        progress: Display.
    """
    settings = config.warm_start
    learner, tokenizer = make_learner(model_path, config, Optimization(settings.lr, 0.0, 1.0))
    env = make_env(config.env, "train")
    steps = demonstrate(env, tokenizer, config.env, settings, seed=config.seed)
    env.close()
    progress.note(
        f"warm start: {len(steps)} {settings.demonstrator} steps from {settings.episodes} training tasks"
    )
    player = make_players(config, tokenizer)["dev"]
    sampler = make_sampler(config, learner, tokenizer)
    dev = make_env(config.env, "dev")
    tasks = listed_tasks(dev, settings.eval_tasks)

    def dev_success() -> float:
        sampler.load(learner.weights(), sampler.snapshot_id)
        result = evaluate(player, sampler, tasks, temperature=config.eval.temperature, seed=config.eval.seed)
        return result.success_rate

    with open_log(out) as log:

        def report(update: int, values: dict[str, float]) -> None:
            log.write(update, values)
            progress.note(
                f"warm start: update {update}, loss {values['sft/loss']:.3f}, "
                f"dev success {values['sft/dev_success_rate']:.1%}"
            )

        warm_start(learner, steps, settings, seed=config.seed, dev_success=dev_success, report=report)
    player.close()
    dev.close()
    save_weights(learner, out)
    if is_main():
        save_tokenizer(tokenizer, out)


def evaluate_test(run: Run, label: str) -> dict[str, Any]:
    """Evaluate on the test list, next to random and optimal play; recorded in ``eval.jsonl``."""
    count = run.config.eval.test_tasks
    result = run.evaluate("test", count)
    env = make_env(run.config.env, "test")
    tasks = listed_tasks(env, count)

    def play_baselines() -> dict[str, float]:
        return {
            "random": random_baseline(env, tasks, seed=run.config.eval.seed).success_rate,
            "optimal": expert_baseline(env, tasks).success_rate,
        }

    baselines = from_main(play_baselines, "playing of baselines")
    env.close()
    run.folder.keep_episodes(label, result.episodes)
    seen = (t.image for episode in result.episodes for t in episode.transitions)
    run.folder.keep_images(seen, run.players["test"].images)
    return run.record_evaluation(result, "test", label, baselines)


def save_policy(run: Run, start: Path) -> None:
    """Save the trained policy as ``policy/`` in Hugging Face layout."""

    def write(out: Path) -> None:
        save_weights(run.policy, out)
        for pattern in ("tokenizer*", "*.jinja", "preprocessor_config.json") if is_main() else ():
            for path in start.glob(pattern):
                shutil.copy2(path, out / path.name)

    make_once(run.folder.path / "policy", write)


def save_weights(learner: TorchLearner, out: Path) -> None:
    """Save a learner's model in Hugging Face layout; all processes take part, the main one writes."""
    weights = learner.weights()
    if not is_main():
        return
    if isinstance(learner.model, AdaptedModel):
        learner.model.save_pretrained(out)
    else:
        learner.model.save_pretrained(out, state_dict=weights)  # type: ignore[operator]


def _is_made(target: Path) -> bool:
    """Say whether a folder is there.

    Raises:
        CheckpointMismatch: If it is not what was written.
    """
    if (target / SEAL).is_file() and (what := damage(target)):
        raise CheckpointMismatch(
            f"{target} is damaged: {what}. Remove this folder; --resume makes it again as it was."
        )
    return target.exists()


def _complete(partial: Path, target: Path) -> None:
    with writing(target):
        seal(partial)
        partial.replace(target)


def _init(config: RunConfig, out: Path) -> None:
    env = make_env(config.env, "train")
    init_tiny(
        env,
        out,
        template=config.env.template,
        window=config.env.window,
        vocab_size=config.model.vocab_size,
        episodes=config.model.tokenizer_episodes,
        hidden_size=config.model.hidden_size,
        num_layers=config.model.num_layers,
        num_heads=config.model.num_heads,
        vision_layers=config.model.vision_layers,
        rope_theta=config.model.rope_theta,
        seed=config.seed,
    )
    env.close()
