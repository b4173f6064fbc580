"""Any environment as a conversation with a language model.

``Conversation`` renders the messages that ask for the next step and turns the model's reply into
one environment step. It speaks messages, not tokens; what a tokenizer makes of them is the
trainer's business.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from istar_envs.actions import parse_reply
from istar_envs.episode import EndReason, Episode, ImageStore, Transition, valid_text
from istar_envs.errors import ConfigError, ResetNeeded
from istar_envs.language import RECORDED_INFO, InvalidAction, TextPlayable
from istar_envs.templates import Part, Template, content_of, fill, load_template

Message = dict[str, Any]
"""``{"role": "system" | "user" | "assistant", "content": str | [{"type": "text" | "image", …}]}``."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the agent saw before a step."""

    text: str
    image: NDArray[np.uint8] | None

    @property
    def parts(self) -> list[Part]:
        shown: list[Part] = [self.text] if self.text else []
        return shown if self.image is None else [*shown, self.image]


class Conversation:
    """One environment, played by replies in text.

    Args:
        env: A Gymnasium environment whose ``unwrapped`` offers ``language`` and ``invalid_step``.
        template: Name or path of a prompt template (``think-v1``, ``act-v1``, ``bare-v1``).
        window: How many past (observation, action) pairs each prompt repeats; ``None`` for the
            full dialogue, with every reply verbatim.
        actions_per_turn: How many actions one reply may hold, separated by ``||``.
        images: Where pictures are kept; without it only their hash is recorded.

    Raises:
        ConfigError: If the environment cannot be played in text, or an option is out of range.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        template: str = "think-v1",
        window: int | None = 2,
        actions_per_turn: int = 1,
        images: ImageStore | None = None,
    ) -> None:
        world = env.unwrapped
        if not hasattr(world, "language") or not hasattr(world, "invalid_step"):
            raise ConfigError(
                f"{type(world).__name__} cannot be played in text: it has no `language` and `invalid_step` "
                "(istar_envs.language.TextPlayable). Use an istar environment or add both."
            )
        if (window is not None and window < 0) or actions_per_turn < 1:
            raise ConfigError(
                f"window={window} and actions_per_turn={actions_per_turn}: window must be None or >= 0, "
                "actions_per_turn >= 1."
            )
        self.env = env
        self.template: Template = load_template(template)
        self.window = window
        self.actions_per_turn = actions_per_turn
        self._world = cast(TextPlayable, world)
        self._images = images
        self._transitions: list[Transition] = []
        self._seen: list[_Seen] = []
        self._info: dict[str, Any] = {}
        self._end: EndReason | None = None
        self._started = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a new episode (see the environment's ``reset``)."""
        observation, self._info = self.env.reset(seed=seed, options=options)
        self._transitions, self._seen, self._end = [], [], None
        self._started = True
        self._look(observation)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self._end is not None

    @property
    def task_id(self) -> str:
        """What is being played; equal ids mean equal starts."""
        return str(self._info["task_id"])

    @property
    def info(self) -> Mapping[str, Any]:
        """The environment's latest ``info``."""
        return self._info

    def messages(self) -> list[Message]:
        """Return the prompt of the next step.

        Raises:
            ResetNeeded: If there is no running episode.
        """
        self._require_running()
        system: list[Message] = []
        if self.template.system:
            system = [_message("system", fill(self.template.system, self._values(len(self._transitions))))]
        dialogue = self._full_dialogue() if self.window is None else [self._windowed_turn(self.window)]
        return [*system, *dialogue]

    def respond(self, reply: str) -> Transition:
        """Take the model's reply as the next step; any text is accepted.

        Args:
            reply: The model's text. If it is no legal action, the step is spent and nothing changes.

        Returns:
            The record of the step.

        Raises:
            ResetNeeded: If there is no running episode.
        """
        self._require_running()
        reply = valid_text(reply)
        seen, state_key = self._seen[-1], str(self._info["state_key"])
        actions = self.read(reply)
        if isinstance(actions, InvalidAction):
            names, reason = None, actions.reason
            observation, reward, terminated, truncated, self._info = self._world.invalid_step(reason)
        else:
            names, observation, reward, terminated, truncated = self._play(actions)
            reason = self._info["invalid_reason"]
        failure = self._info.get("failure")
        transition = Transition(
            observation=seen.text,
            image=self._keep(seen.image),
            reply=reply,
            action=names if reason is None else None,
            reward=0.0 if failure else float(reward),
            valid=reason is None,
            invalid_reason=reason,
            state_key=state_key,
            info=self._recorded(),
        )
        self._transitions.append(transition)
        if terminated or truncated:
            self._end = "failed" if failure else "terminated" if terminated else "truncated"
        self._look(observation)
        return transition

    def read(self, reply: str) -> list[Any] | InvalidAction:
        """Return the world's own actions that a reply would take here, or why it is none; nothing happens."""
        parsed = parse_reply(reply, self.template.grammar, max_actions=self.actions_per_turn)
        if isinstance(parsed, InvalidAction):
            return parsed
        actions = [self._world.language.action(text, self._info) for text in parsed.actions]
        return next((action for action in actions if isinstance(action, InvalidAction)), actions)

    def truncate(self) -> None:
        """End the episode at a limit that is not the environment's, such as a full prompt."""
        self._require_running()
        self._end = "truncated"
        if self._transitions and hasattr(self._world, "truncate"):
            _, reward, _, _, self._info = self._world.truncate()
            last = self._transitions[-1]
            total = last.reward + (0.0 if self._info.get("failure") else float(reward))
            self._transitions[-1] = replace(last, reward=total, info=self._recorded())

    def episode(self, error: str | None = None) -> Episode:
        """Return the record of the episode so far.

        Args:
            error: What broke; the episode is then marked ``failed``, as it is by ``info["failure"]``.

        Raises:
            ResetNeeded: If the episode is still running and nothing broke.
        """
        if self._end is None and error is None:
            raise ResetNeeded("the episode is still running: call respond() until done.")
        error = error or self._info.get("failure") or None
        return Episode(
            env_id=self._env_id(),
            task_id=str(self._info.get("task_id", "")),
            task=str(self._info.get("task", "")),
            transitions=tuple(self._transitions),
            success=error is None and bool(self._info["success"]),
            score=float(self._info.get("score", 0.0)),
            end="failed" if error is not None or self._end is None else self._end,
            final_observation=self._seen[-1].text if self._seen else "",
            error=error,
        )

    def _env_id(self) -> str:
        """Return the id of the world; one on a server says itself which it is."""
        spec_id = self.env.spec.id if self.env.spec else type(self._world).__name__
        return str(getattr(self._world, "env_id", spec_id))

    def _require_running(self) -> None:
        if not self._started or self.done:
            raise ResetNeeded("no running episode: call reset() first.")

    def _look(self, observation: Any) -> None:
        seen = observation, self._info
        self._seen.append(_Seen(self._world.language.text(*seen), self._world.language.image(*seen)))

    def _play(self, actions: list[Any]) -> tuple[str, Any, float, bool, bool]:
        """Take the actions of one reply until one is invalid or the episode ends; rewards are summed."""
        taken: list[str] = []
        total = 0.0
        for action in actions:
            taken.append(self._world.language.name(action))
            observation, reward, terminated, truncated, self._info = self.env.step(action)
            total += float(reward)
            if terminated or truncated or not self._info["valid"]:
                break
        return "||".join(taken), observation, total, terminated, truncated

    def _recorded(self) -> dict[str, Any]:
        """Return the facts of the latest ``info`` that the world wants recorded, without empty ones."""
        keys = getattr(self._world.language, "recorded_info", RECORDED_INFO)
        return {key: self._info[key] for key in keys if self._info.get(key) not in (None, "")}

    def _keep(self, image: NDArray[np.uint8] | None) -> str | None:
        if image is None:
            return None
        png = _png(image.tobytes(), image.shape)
        return hashlib.sha256(png).hexdigest() if self._images is None else self._images.put(png)

    def _values(self, step: int) -> dict[str, Any]:
        return {
            "role": self._world.language.role,
            "task": str(self._info["task"]),
            "step": str(step),
            "admissible": ", ".join(self._info["admissible_actions"]),
            "observation": self._seen[step].parts,
        }

    def _windowed_turn(self, window: int) -> Message:
        step = len(self._transitions)
        history: list[Part] = []
        for past in range(max(0, step - window), step):
            item = {
                **self._values(past),
                "number": str(past + 1),
                "action": self._transitions[past].action or "an invalid reply",
            }
            history += fill(self.template.history_item, item)
        return _message("user", fill(self.template.turn, {**self._values(step), "history": history}))

    def _full_dialogue(self) -> list[Message]:
        dialogue = [_message("user", fill(self.template.opening, self._values(0)))]
        for step, transition in enumerate(self._transitions, start=1):
            dialogue.append({"role": "assistant", "content": transition.reply})
            dialogue.append(_message("user", fill(self.template.continuation, self._values(step))))
        return dialogue


@lru_cache(maxsize=512)  # packing takes longer than the rest of a step, and boards are seen again
def _png(pixels: bytes, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(shape)).save(buffer, format="PNG")
    return buffer.getvalue()


def _message(role: str, parts: list[Part]) -> Message:
    return {"role": role, "content": content_of(parts)}
