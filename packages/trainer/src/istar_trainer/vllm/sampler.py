"""The sampler that draws from vLLM: snapshots handed over, crashes survived, weights proved.

New weights are taken over by vLLM before the next reply, by folder (``files``) or by broadcast. Whenever vLLM
takes weights over, it scores a text that the learner has scored too. A reply that a crash lost is asked for
again with the same seed, from the same snapshot.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from istar_trainer.context import Prompt
from istar_trainer.errors import SamplerFailed, StaleSnapshot
from istar_trainer.pictures import PlacedPicture
from istar_trainer.sampler import Completion, Request
from istar_trainer.vllm.wire import SamplerDown, sampling_parameters

logger = logging.getLogger(__name__)

_PROBE_TOKENS = 256

Score = Callable[[Sequence[int], Sequence[PlacedPicture]], list[float]]
"""Logprobs of every token but the first under the learner's present weights, at temperature 1."""


class Backend(Protocol):
    """A vLLM that can be started, asked and given weights; raises SamplerDown when it cannot."""

    def start(self, model: Path) -> bool:
        """Bring it up with the weights of a folder; returns whether it has read them."""
        ...

    def is_alive(self) -> bool:
        """Whether it runs and holds what it was given."""
        ...

    def answer(
        self,
        requests: Sequence[Request],
        parameters: Sequence[Mapping[str, Any]],
        done: Callable[[int, Completion], None],
    ) -> None:
        """Draw replies and hand each over as it comes."""
        ...

    def prompt_logprobs(self, ids: Sequence[int], pictures: Sequence[PlacedPicture] = ()) -> list[float]:
        """Score every token but the first at temperature 1."""
        ...

    def load_weights(self, folder: Path) -> None:
        """Take over the weights of a folder."""
        ...

    def load_adapter(self, name: str, folder: Path) -> None:
        """Use a LoRA adapter from now on."""
        ...

    def sleep(self) -> None:
        """Leave the GPU's memory to others."""
        ...

    def wake(self) -> None:
        """Take it back."""
        ...

    def stop(self) -> None:
        """End it; it can be started again."""
        ...

    def close(self) -> None:
        """End it for good."""
        ...

    def diagnosis(self) -> str:
        """Say what is known about a failure."""
        ...


class Transfer(Protocol):
    """A way in which weights reach a backend; raises SamplerDown when they do not."""

    def take(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Keep new weights, in place of the ones before."""
        ...

    def start(self) -> None:
        """Bring the backend up."""
        ...

    def give(self) -> None:
        """See to it that the backend has the weights that were taken last."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class VllmSampler:
    """Draws replies from vLLM.

    Args:
        backend: Server or engine.
        transfer: How weights reach it.
        score: Scores a text with the learner; None to believe vLLM unproved.
        eos_token_id: Token that ends a reply.
        max_new_tokens: Longest reply.
        probe_band: Largest mean |Δ logprob| between vLLM and learner, nats.
        max_restarts: Restarts while the same replies are waited for.
        sleeps: Whether vLLM leaves the GPU to the learner while it rests.
    """

    def __init__(
        self,
        backend: Backend,
        transfer: Transfer,
        *,
        score: Score | None,
        eos_token_id: int,
        max_new_tokens: int,
        probe_band: float,
        max_restarts: int,
        sleeps: bool = False,
    ) -> None:
        self.backend = backend
        self._transfer = transfer
        self._score = score
        self._eos_token_id = eos_token_id
        self._max_new_tokens = max_new_tokens
        self._probe_band = probe_band
        self._max_restarts = max_restarts
        self._sleeps = sleeps
        self._snapshot_id = 0
        self._held: int | None = None
        self._has_run = self._is_asleep = False
        self._seen = Prompt([])
        self._probe: tuple[Prompt, list[float]] | None = None

    @property
    def snapshot_id(self) -> int:
        """Version of the weights in use."""
        return self._snapshot_id

    def load(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Keep new weights; vLLM takes them over before the next reply.

        Raises:
            SamplerFailed: If they cannot be written.
        """
        self._transfer.take(weights, snapshot_id)
        self._snapshot_id = snapshot_id
        self._probe = self._scored(self._seen)

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        """Draw one reply per request, in the order of the requests.

        Raises:
            SamplerFailed: If vLLM refuses a request, does not come up, or crashes too often.
            StaleSnapshot: If it draws from other weights than the present snapshot.
        """
        done: dict[int, Completion] = {}
        crashes = 0
        while len(done) < len(requests):
            missing = [place for place in range(len(requests)) if place not in done]
            asked = [requests[place] for place in missing]
            try:
                self._synchronize(_excerpt(asked[0].prompt_ids, asked[0].pictures))
                self.backend.answer(
                    asked,
                    [self._parameters(request, temperature) for request in asked],
                    lambda number, reply, places=missing: done.__setitem__(places[number], reply),  # type: ignore[misc]
                )
            except SamplerDown as error:
                crashes += 1
                self._give_up_or_go_on(error, crashes, len(requests) - len(done))
        read = [*requests[0].prompt_ids, *done[0].response_ids[:-1]]  # scoring makes one more token
        self._seen = _excerpt(read, requests[0].pictures)
        return [done[place] for place in range(len(requests))]

    def rest(self) -> None:
        """Leave the GPU to the learner until the next reply is asked for."""
        if self._sleeps and self._held is not None and not self._is_asleep:
            try:
                self.backend.sleep()
            except SamplerDown as error:
                logger.warning("vLLM broke on its way to sleep: %s", error)
                self.backend.stop()
            self._is_asleep = True

    def close(self) -> None:
        """End vLLM and remove the snapshots."""
        self.backend.close()
        self._transfer.close()

    def _parameters(self, request: Request, temperature: float) -> dict[str, Any]:
        return sampling_parameters(
            request,
            temperature=temperature,
            eos_token_id=self._eos_token_id,
            max_new_tokens=self._max_new_tokens,
        )

    def _synchronize(self, text: Prompt) -> None:
        """See to it that vLLM runs and holds the present snapshot, and let it prove that if it is new."""
        is_alive = self.backend.is_alive()
        if is_alive and self._is_asleep:
            self.backend.wake()
        self._is_asleep = False
        if is_alive and self._held == self._snapshot_id:
            return
        if not is_alive:
            if self._held is not None:
                logger.warning("vLLM is gone; it is started again with snapshot %d", self._snapshot_id)
            self._held = None
            self._transfer.start()
            self._has_run = True
        self._transfer.give()
        self._prove(text)
        self._held = self._snapshot_id

    def _prove(self, text: Prompt) -> None:
        """Compare vLLM's logprobs of a text with the learner's."""
        self._probe = self._probe or self._scored(text)
        if self._probe is None:
            return
        probe, expected = self._probe
        found = self.backend.prompt_logprobs(probe.ids, probe.pictures)
        gap = sum(abs(one - other) for one, other in zip(found, expected, strict=True)) / len(expected)
        logger.debug("vLLM holds snapshot %d: mean |Δ logprob| %.4f", self._snapshot_id, gap)
        if not gap <= self._probe_band:
            raise StaleSnapshot(
                f"vLLM was given snapshot {self._snapshot_id} but its weights are others: its logprobs of "
                f"{len(expected)} tokens differ from the learner's by {gap:.3g} nats on average, more than "
                f"sampler.probe_band={self._probe_band:g}. Run `istar doctor`; a coarse sampler.dtype or "
                "quantization wants a wider band."
            )

    def _scored(self, text: Prompt) -> tuple[Prompt, list[float]] | None:
        if self._score is None or len(text.ids) < 2:
            return None
        return text, self._score(text.ids, text.pictures)

    def _give_up_or_go_on(self, error: SamplerDown, crashes: int, num_missing: int) -> None:
        diagnosis = self.backend.diagnosis()
        self.backend.stop()
        self._held = None
        if not self._has_run:
            raise SamplerFailed(f"vLLM did not come up: {error}. {diagnosis}") from error
        if crashes > self._max_restarts:
            raise SamplerFailed(
                f"vLLM broke {crashes} times (sampler.max_restarts={self._max_restarts}) while {num_missing} "
                f"replies were missing: {error}. The last checkpoint is intact; go on with --resume. "
                f"{diagnosis}"
            ) from error
        logger.warning(
            "vLLM broke (%s); it is started again with snapshot %d and asked again for %d replies",
            error,
            self._snapshot_id,
            num_missing,
        )


def _excerpt(ids: Sequence[int], pictures: Sequence[PlacedPicture]) -> Prompt:
    """Return the beginning of a text, with its first picture if there is one, and none in part."""
    ends = [placed.start + placed.picture.num_tokens for placed in pictures]
    length = max([_PROBE_TOKENS, *ends[:1]])
    shown = tuple(placed for placed, end in zip(pictures, ends, strict=True) if end <= length)
    left_out = [placed.start for placed in pictures[len(shown) :]]
    return Prompt(list(ids[: min([length, *left_out])]), shown)
