"""A chat model on the other chair, behind any OpenAI-compatible endpoint.

It reads exactly what its seat may read. Its replies are read by the grammar and never by another model. An
endpoint that gives no reply makes the partner fail; it never becomes a pass.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol, get_args

from istar_envs import background
from istar_envs.chat import ChatError, ChatMessages, ChatReply
from istar_envs.errors import ConfigError, suggest
from istar_envs.seeding import derive_seed
from istar_envs.sotopia.dialogue import MAX_ARGUMENT, Action
from istar_envs.sotopia.grammar import (
    JSON_TYPES,
    PROTOCOLS,
    ProtocolName,
    parse_action,
)
from istar_envs.sotopia.language import SotopiaLanguage
from istar_envs.sotopia.partners.base import PartnerFailed, PartnerView, Reply
from istar_envs.sotopia.render import Visibility
from istar_envs.sotopia.scene import happened, names_of, opening, whose_turn

OnUnreadable = Literal["pass", "abort"]

_WHEN_TO_LEAVE: Final = (
    "\nLeave when your goal is reached or cannot be reached any more, or when you are uncomfortable or have "
    "lost interest. Answer with one action and nothing else."
)
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "action_type": {"type": "string", "enum": list(JSON_TYPES)},
        "argument": {"type": "string"},
    },
    "required": ["action_type", "argument"],
    "additionalProperties": False,
}
_SEEDS: Final = 1 << 31


class Chat(Protocol):
    """The part of ``ChatClient`` that a partner needs."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything about the model and its settings that can change a reply."""
        ...

    async def acomplete(
        self,
        messages: ChatMessages,
        *,
        response_schema: Mapping[str, Any] | None,
        temperature: float,
        max_tokens: int,
        seed: int,
    ) -> ChatReply:
        """Ask for the next message."""
        ...

    def close(self) -> None:
        """Close connections; a later call opens new ones."""
        ...


class LlmPartner:
    """A chat model that takes a seat.

    Args:
        chat: The model.
        protocol: Notation of its actions.
        temperature: Sampling temperature.
        max_tokens: Most tokens of a reply.
        retries: How often it is asked again after a reply that could not be read, and told why.
        on_unreadable: After that, ``pass`` records an unreadable reply, which counts as no chosen pass;
            ``abort`` makes it fail.
        visibility: What it may read; ``leaky_ampo`` only to compare with numbers published that way.
        seed: Seed of its sampling, together with task, seat, turn and try.

    Raises:
        ConfigError: If an option is unknown or out of range.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        protocol: ProtocolName = "json",
        temperature: float = 0.7,
        max_tokens: int = 512,
        retries: int = 2,
        on_unreadable: OnUnreadable = "pass",
        visibility: Visibility = "strict",
        seed: int = 0,
    ) -> None:
        self.chat = chat
        self.protocol, self.visibility, self.seed = protocol, visibility, seed
        self.temperature, self.max_tokens = temperature, max_tokens
        self.retries, self.on_unreadable = retries, on_unreadable
        self._check()
        self._role = SotopiaLanguage(protocol).role + _WHEN_TO_LEAVE

    @property
    def name(self) -> str:
        """``llm-1``, the model, and a hash of everything else that can change a reply."""
        options = (self.protocol, self.temperature, self.max_tokens, self.retries, self.on_unreadable)
        all_options = repr((dict(self.chat.identity), *options, self.visibility, self.seed))
        return f"llm-1/{self.model}/{blake2b(all_options.encode(), digest_size=4).hexdigest()}"

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.chat.identity["model"])

    def messages(self, view: PartnerView) -> list[dict[str, str]]:
        """Write the prompt: rules and notation, then what the seat knows and has perceived."""
        setting, seat = view.setting, view.seat
        lines = [
            opening(setting, seat, self.visibility),
            *happened(setting, seat, view.events),
            whose_turn(setting, (seat,), view.turn, view.max_turns),
        ]
        role = f"You are {names_of(setting)[seat]}. {self._role}"
        return [{"role": "system", "content": role}, {"role": "user", "content": "\n".join(lines)}]

    def act(self, view: PartnerView) -> Reply:
        """Ask the model and wait.

        Raises:
            PartnerFailed: If the endpoint gives no reply, or with ``abort`` none that can be read.
        """
        return background.run(self.aact(view))

    def close(self) -> None:
        """Close connections; a later call opens new ones."""
        self.chat.close()

    async def aact(self, view: PartnerView) -> Reply:
        """Ask the model; see ``act``."""
        messages, reason = self.messages(view), ""
        for attempt in range(self.retries + 1):
            reply = await self._ask(messages, view, attempt)
            action = parse_action(reply, self.protocol, view.allowed)
            is_last = attempt == self.retries
            if isinstance(action, Action) or (is_last and self.on_unreadable == "pass"):
                return action
            reason = action.reason
            messages = [*messages, *_correction(reply, reason)]
        raise PartnerFailed(
            f"partner {self.model}: {self.retries + 1} replies could not be read, the last one because "
            f"{reason}. Raise retries, or choose another protocol or model."
        )

    def _check(self) -> None:
        for option, value, known in (
            ("protocol", self.protocol, PROTOCOLS),
            ("on_unreadable", self.on_unreadable, get_args(OnUnreadable)),
            ("visibility", self.visibility, get_args(Visibility)),
        ):
            if value not in known:
                raise ConfigError(f"partner {self.model}: no {option} {value!r}.{suggest(value, known)}")
        if self.retries < 0 or self.max_tokens < 1:
            raise ConfigError(
                f"partner {self.model}: retries={self.retries} and max_tokens={self.max_tokens}; give "
                "retries >= 0 and max_tokens >= 1."
            )

    async def _ask(self, messages: ChatMessages, view: PartnerView, attempt: int) -> str:
        seed = derive_seed(self.seed, "partner", view.setting.pk, view.seat, view.turn, attempt)
        try:
            reply = await self.chat.acomplete(
                messages,
                response_schema=_SCHEMA if self.protocol == "json" else None,
                temperature=self.temperature,
                max_tokens=self.max_tokens,
                seed=seed % _SEEDS,
            )
        except ChatError as error:
            raise PartnerFailed(f"partner {self.model}: {error}") from error
        return reply.text


def _correction(reply: str, reason: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant", "content": reply[: 2 * MAX_ARGUMENT]},
        {
            "role": "user",
            "content": f"This could not be read: {reason}. Answer with one action and nothing else.",
        },
    ]
