"""Commands that look at a policy without training it."""

from pathlib import Path
from typing import Protocol

from istar_envs.episode import write_episodes
from istar_envs.errors import ConfigError
from istar_envs.seeding import derive_seed
from istar_trainer.attempts import Task
from istar_trainer.config import RunConfig
from istar_trainer.evaluate import evaluate, listed_tasks
from istar_trainer.factories import make_env, make_players
from istar_trainer.rollout import Player
from istar_trainer.sampler import LocalSampler
from istar_trainer.tiny import init_tiny
from istar_trainer.weights import load_model


class TinyOptions(Protocol):
    """What ``init-tiny`` is told."""

    env: str
    out: Path
    template: str
    hidden_size: int
    num_layers: int
    num_heads: int
    seed: int


def evaluate_policy(config: RunConfig, policy: Path | None, *, split: str, count: int) -> str:
    """Play the first tasks of a split once each.

    Args:
        config: Environment and evaluation settings.
        policy: Policy folder; the run's own by default.
        split: Listed split.
        count: How many tasks.

    Returns:
        One line with success, its 95% Wilson interval and the mean number of steps.
    """
    player, sampler = _player(config, policy, split)
    env = make_env(config.env, split)
    result = evaluate(
        player,
        sampler,
        listed_tasks(env, count),
        temperature=config.eval.temperature,
        seed=config.eval.seed,
    )
    env.close()
    player.close()
    low, high = result.interval
    return (
        f"{split}: {result.successes} of {result.num} solved = {result.success_rate:.1%} "
        f"(95% interval {low:.1%}–{high:.1%}), mean score {result.mean_score:.3f}, "
        f"{result.mean_steps:.1f} steps on average"
    )


def record_episodes(config: RunConfig, policy: Path | None, *, split: str, count: int, out: Path) -> str:
    """Play tasks and append the episodes to a file.

    Returns:
        One line that says what was written.

    Raises:
        ConfigError: If the file cannot be written.
    """
    player, sampler = _player(config, policy, split)
    tasks = [Task(f"rollout/{n}", derive_seed(config.seed, "recorded", n) % 2**31) for n in range(count)]
    groups = player.play(
        tasks, sampler, group_size=1, seed=config.seed, temperature=config.rollout.temperature
    )
    player.close()
    try:
        write_episodes(out, [group.trajectories[0].episode for group in groups])
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}. Choose another --out.") from error
    return f"{count} episodes appended to {out}"


def make_tiny(options: TinyOptions) -> str:
    """Make a tiny model and tokenizer; see ``tiny.init_tiny``.

    Returns:
        One line that says what was made.

    Raises:
        ConfigError: If the folder is not empty.
    """
    import istar_envs

    if options.out.exists() and any(options.out.iterdir()):
        raise ConfigError(f"{options.out} is not empty. Choose another --out.")
    env = istar_envs.make(options.env)
    init_tiny(
        env,
        options.out,
        template=options.template,
        window=0,
        hidden_size=options.hidden_size,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        seed=options.seed,
    )
    env.close()
    return f"tiny model and tokenizer for {options.env}: {options.out}"


def _player(config: RunConfig, policy: Path | None, split: str) -> tuple[Player, LocalSampler]:
    model, tokenizer = load_model(config.run_dir / "policy" if policy is None else policy)
    sampler = LocalSampler(
        model,
        eos_token_id=tokenizer.eos_token_id,
        max_new_tokens=config.rollout.max_response_tokens,
    )
    players = make_players(config, tokenizer)
    if split not in players:
        raise ConfigError(f"unknown split {split!r}. Known: {', '.join(players)}.")
    return players[split], sampler
