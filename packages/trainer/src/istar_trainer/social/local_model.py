"""A causal language model on disk as a player, prompted exactly as in training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
from pydantic import ValidationError

from istar_envs.agent import Conversation
from istar_envs.errors import ConfigError
from istar_envs.language import InvalidAction
from istar_envs.seeding import derive_seed
from istar_envs.sotopia.game import Game, PlayOptions
from istar_envs.sotopia.grammar import ParseError, ProtocolName, parse_action
from istar_envs.sotopia.language import SotopiaLanguage
from istar_envs.sotopia.partners.base import PartnerFailed, Reply
from istar_trainer.config import RunConfig
from istar_trainer.context import Context, FullContext, Prompt, WindowContext
from istar_trainer.sampler import LocalSampler, Request, Sampler
from istar_trainer.social.dialogues import RULES, Chair, PromptOverflow
from istar_trainer.weights import load_model


@dataclass(frozen=True, slots=True)
class Prompting:
    """How a model is prompted; it should be as in its training.

    Attributes:
        template: Prompt template.
        window: Past steps in each prompt; None for the full dialogue.
        history: What an observation shows, as the environment's option.
        protocol: Notation of actions, as the environment's option.
        max_prompt_tokens: A longer prompt truncates the episode.
        max_response_tokens: Longest reply.
    """

    template: str = "act-v1"
    window: int | None = 0
    history: Literal["all", "new"] = "all"
    protocol: ProtocolName = "plain"
    max_prompt_tokens: int = 6144
    max_response_tokens: int = 256


class ModelPlayer:
    """A local model that takes seats.

    Args:
        sampler: Draws replies.
        tokenizer: Hugging Face tokenizer with a chat template.
        prompting: How it is prompted.
        temperature: Sampling temperature; 0 is greedy.
        seed: Seed of the draws, together with task, seat, number and turn.
    """

    def __init__(
        self, sampler: Sampler, tokenizer: Any, prompting: Prompting, *, temperature: float, seed: int
    ) -> None:
        self._sampler = sampler
        self._tokenizer = tokenizer
        self.prompting = prompting
        self._temperature = temperature
        self._seed = seed
        self._memories: dict[Chair, _Memory] = {}
        self._prompts: dict[str, Prompt] = {}

    def act_many(self, chairs: Sequence[Chair]) -> list[Reply | PartnerFailed]:
        """Draw a reply on each chair in one batch."""
        prompts = [self._memory(chair).prompt().ids for chair in chairs]
        fits = [len(prompt) <= self.prompting.max_prompt_tokens for prompt in prompts]
        requests = [
            Request(prompt, self._seed_of(chair))
            for chair, prompt, is_playable in zip(chairs, prompts, fits, strict=True)
            if is_playable
        ]
        drawn = iter(self._sampler.generate(requests, temperature=self._temperature) if requests else ())
        replies: list[Reply | PartnerFailed] = []
        for chair, prompt, is_playable in zip(chairs, prompts, fits, strict=True):
            if is_playable:
                replies.append(self._memory(chair).read(next(drawn).response_ids))
            else:
                replies.append(PromptOverflow(f"the prompt has {len(prompt)} tokens"))
        return replies

    def _memory(self, chair: Chair) -> "_Memory":
        if chair not in self._memories:
            self._memories[chair] = _Memory(chair, self._tokenizer, self.prompting, self._prompts)
        return self._memories[chair]

    def _seed_of(self, chair: Chair) -> int:
        turn = chair.encounter.state.turn
        return derive_seed(self._seed, chair.game.task_id, chair.number, turn)


def load_player(folder: Path, given: Prompting, *, temperature: float, seed: int) -> ModelPlayer:
    """Load the policy of a run, prompted as in the run, or any other model.

    Args:
        folder: A run folder, or a model in Hugging Face layout.
        given: How a model without a run is prompted.
        temperature: Sampling temperature.
        seed: Seed of the draws.

    Raises:
        ConfigError: If there is no model, or the run's configuration cannot be read.
    """
    is_run = (folder / "policy").is_dir()
    prompting = _prompting_of(folder / "config.json") if is_run else given
    model, tokenizer = load_model(folder / "policy" if is_run else folder)
    sampler = LocalSampler(
        model, eos_token_id=tokenizer.eos_token_id, max_new_tokens=prompting.max_response_tokens
    )
    return ModelPlayer(sampler, tokenizer, prompting, temperature=temperature, seed=seed)


def _prompting_of(path: Path) -> Prompting:
    try:
        config = RunConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}. Name the model in policy/ itself."
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(f"cannot read {path}: {why}. Name the model in policy/ itself.") from error
    options = {key: config.env.kwargs[key] for key in ("history", "protocol") if key in config.env.kwargs}
    return Prompting(
        config.env.template,
        config.env.window,
        **options,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        max_response_tokens=config.rollout.max_response_tokens,
    )


class _Memory:
    """What a model remembers of one dialogue: its own conversation with the environment.

    A reply takes effect outside, so it is entered only when the seat is asked again and the answer to it
    is known.
    """

    def __init__(
        self, chair: Chair, tokenizer: Any, prompting: Prompting, prompts: dict[str, Prompt]
    ) -> None:
        world = _World(chair, prompting)
        self._conversation = Conversation(world, template=prompting.template, window=prompting.window)
        self._conversation.reset()
        self._tokenizer = tokenizer
        self._protocol = prompting.protocol
        self._context: Context = (
            FullContext(tokenizer) if prompting.window is None else WindowContext(tokenizer, prompts)
        )
        self._entered: str | None = None

    def prompt(self) -> Prompt:
        """Return what asks for the next reply."""
        if self._entered is not None:
            self._conversation.respond(self._entered)
        return self._context.prompt(self._conversation.messages())

    def read(self, response_ids: Sequence[int]) -> Reply:
        """Keep a reply and return the action that it is, or why it is none."""
        self._context.responded(response_ids)
        text = str(self._tokenizer.decode(response_ids, skip_special_tokens=True))
        self._entered = text
        actions = self._conversation.read(text)
        if isinstance(actions, InvalidAction):
            return ParseError("syntax", (0, len(text)), actions.reason)
        return parse_action(actions[0], self._protocol)


class _World(gym.Env[str, str]):
    """A seat of a dialogue that goes on outside, as an environment: steps only look at it."""

    def __init__(self, chair: Chair, prompting: Prompting) -> None:
        options = PlayOptions(RULES, prompting.protocol, history=prompting.history)
        self._game = Game(chair.game.task_id, chair.encounter, chair.seat, options)
        self.language = SotopiaLanguage(prompting.protocol)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the dialogue so far."""
        return self._game.start()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Show what has happened since the last action."""
        return self._game.answer()

    def invalid_step(self, reason: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Show what has happened since the last reply."""
        return self._game.answer()
