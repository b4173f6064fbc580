"""Token-in, token-out generation with log-probabilities.

``LocalSampler`` runs in this process: equal prompts are read once, the key-value cache is kept per
row, and only rows that have not ended are computed. If wanted, a prompt that goes on from an earlier
prompt and its reply is read from there on. Every draw comes from the request's own seed, so a result
does not depend on what else is in the batch.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from istar_envs.seeding import CounterRng
from istar_trainer.devices import device_of
from istar_trainer.kept import Beginning, Dialogue, KeptDialogues, restore
from istar_trainer.pictures import PlacedPicture
from istar_trainer.vision import Shown, place_pictures, rope_positions, showing


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to draw.

    Attributes:
        prompt_ids: Token ids to condition on; not empty.
        seed: Seed of the draw.
        pictures: What the prompt shows.
    """

    prompt_ids: Sequence[int]
    seed: int
    pictures: tuple[PlacedPicture, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """One drawn reply.

    Attributes:
        response_ids: Drawn tokens, end-of-sequence included when drawn.
        logprobs: Log-probability of each, nats, at the sampling temperature.
    """

    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Sampler(Protocol):
    """Draws replies from a snapshot of the policy."""

    @property
    def snapshot_id(self) -> int:
        """Version of the weights in use."""
        ...

    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        """Draw one reply per request, in the order of the requests."""
        ...

    def load(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Take over new weights under a new version."""
        ...


class PolicySampler(Sampler, Protocol):
    """A sampler that follows a learner and may hold a process or a GPU's memory of its own."""

    def rest(self) -> None:
        """Leave what learning needs, such as a GPU's memory, until the next reply is asked for."""
        ...

    def close(self) -> None:
        """End what was started for it."""
        ...


class LocalSampler:
    """Samples from a model in this process.

    Args:
        model: Causal LM. When it is the learner's own model, ``load`` copies nothing.
        eos_token_id: Token that ends a reply.
        max_new_tokens: Longest reply.
        max_rows: Rows generated together; bounds the memory of the cache.
        kept_mib: Most memory for what was read of dialogues that may go on, in MiB; 0 keeps nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        eos_token_id: int,
        max_new_tokens: int,
        max_rows: int = 512,
        kept_mib: int = 0,
    ) -> None:
        self.model = model
        self.eos_token_id = eos_token_id
        self.max_new_tokens = max_new_tokens
        self.max_rows = max_rows
        self._snapshot_id = 0
        self._kept = KeptDialogues(kept_mib) if kept_mib else None
        # transformers renamed this argument and output in 5.x
        is_renamed = "cache" in inspect.signature(model.forward).parameters
        self._cache_key = "cache" if is_renamed else "past_key_values"

    @property
    def snapshot_id(self) -> int:
        """Version of the weights in use."""
        return self._snapshot_id

    def load(self, weights: dict[str, Tensor], snapshot_id: int) -> None:
        """Take over new weights under a new version; what was read with the old ones is forgotten."""
        self.rest()
        for name, value in self.model.state_dict().items():
            if value.data_ptr() != weights[name].data_ptr():
                value.copy_(weights[name])
        self._snapshot_id = snapshot_id

    def rest(self) -> None:
        """Forget dialogues that may go on."""
        if self._kept is not None:
            self._kept.clear()

    def close(self) -> None:
        """Nothing was started."""

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        """Draw one reply per request.

        Args:
            requests: What to continue, with seeds.
            temperature: Divides the logits; 0 takes the most likely token and reports the
                log-probabilities of temperature 1.

        Returns:
            Completions in the order of the requests.
        """
        if self._kept is None:
            found: list[Beginning | None] = [None] * len(requests)
        else:
            found = self._kept.find([_prompt(request) for request in requests])
        completions: dict[int, Completion] = {}
        for is_known in (False, True):
            rows = [row for row, beginning in enumerate(found) if (beginning is not None) == is_known]
            for start in range(0, len(rows), self.max_rows):
                some = rows[start : start + self.max_rows]
                drawn = self._generate([requests[n] for n in some], [found[n] for n in some], temperature)
                completions |= zip(some, drawn, strict=True)
        if self._kept is not None:
            self._kept.drop([beginning for beginning in found if beginning is not None])
        return [completions[row] for row in range(len(requests))]

    def _generate(
        self, requests: Sequence[Request], beginnings: Sequence[Beginning | None], temperature: float
    ) -> list[Completion]:
        """Draw replies to prompts that all have a known beginning, or all none."""
        rngs = [CounterRng(request.seed) for request in requests]
        prompts = [_prompt(request) for request in requests]
        logits, cache, attention, places = self._read_prompts(prompts, beginnings)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        live = list(range(len(requests)))
        for position in range(self.max_new_tokens):
            drawn, drawn_logprobs = _draw(logits, [rngs[row].random() for row in live], temperature)
            for row, token, logprob in zip(live, drawn.tolist(), drawn_logprobs.tolist(), strict=True):
                tokens[row].append(token)
                logprobs[row].append(logprob)
            going = drawn != self.eos_token_id
            is_last = position + 1 == self.max_new_tokens
            if self._kept is not None:
                rows = [requests[row] for row in live], [tokens[row] for row in live]
                self._keep(*rows, ~going | is_last, cache=cache, attention=attention, places=places)
            live = [row for row, goes_on in zip(live, going.tolist(), strict=True) if goes_on]
            if not live or is_last:
                break
            if len(live) < len(going):
                cache.batch_select_indices(going.nonzero().squeeze(1))
                drawn, attention, places = drawn[going], attention[going], places[going]
            attention = nn.functional.pad(attention, (0, 1), value=1)
            output = self.model(
                input_ids=drawn[:, None],
                attention_mask=attention,
                position_ids=places[:, None],
                use_cache=True,
                **{self._cache_key: cache},
            )
            places = places + 1
            logits = output.logits[:, -1]
        return [Completion(tuple(t), tuple(p)) for t, p in zip(tokens, logprobs, strict=True)]

    def _keep(
        self,
        requests: Sequence[Request],
        tokens: Sequence[Sequence[int]],
        ended: Bool[Tensor, " rows"],
        *,
        cache: Any,
        attention: Int[Tensor, "rows seq"],
        places: Int[Tensor, " rows"],
    ) -> None:
        """Keep the dialogues that have just got their reply; its last token was not read yet."""
        rows = ended.nonzero().squeeze(1)
        if self._kept is not None and len(rows):
            chosen = [(requests[row], tokens[row]) for row in rows.tolist()]
            dialogues = [((*r.prompt_ids, *said[:-1]), r.pictures) for r, said in chosen]
            self._kept.keep(dialogues, cache, rows, attention=attention, ends=places)

    def _read_prompts(
        self,
        prompts: Sequence[Dialogue],
        beginnings: Sequence[Beginning | None],
    ) -> tuple[Float[Tensor, "rows vocab"], Any, Int[Tensor, "rows seq"], Int[Tensor, " rows"]]:
        """Read what is new in each distinct prompt once, then give every row its own copy of the cache.

        Returns:
            Logits of the first token, cache, attention mask, and position of the first token.
        """
        known = dict(zip(prompts, beginnings, strict=True))
        kinds = {prompt: kind for kind, prompt in enumerate(known)}
        past = [beginning for beginning in known.values() if beginning is not None]
        lengths = [beginning.length for beginning in past] or [0] * len(kinds)
        width = max(len(ids) - length for (ids, _), length in zip(kinds, lengths, strict=True))
        ids = torch.zeros(len(kinds), width, dtype=torch.int64)
        attention = torch.zeros(len(kinds), width, dtype=torch.int64)
        new_pictures = []
        for (prompt, pictures), kind in kinds.items():
            new = prompt[lengths[kind] :]
            ids[kind, width - len(new) :] = torch.tensor(new)
            attention[kind, width - len(new) :] = 1
            new_pictures.append([placed for placed in pictures if placed.start >= lengths[kind]])
        album, placed = place_pictures(new_pictures, [width - len(prompt) for prompt, _ in kinds])
        shown = Shown.of(placed, album)
        positions, ends = rope_positions(attention, shown)
        starts = torch.tensor([beginning.end for beginning in past] or [0] * len(kinds))
        positions, ends = positions + starts[:, None], ends + starts
        device = device_of(self.model)
        attention = attention.to(device)
        options: dict[str, Any] = {}
        if past:
            options[self._cache_key], before = restore(past, self.model)
            attention = torch.cat([before, attention], dim=1)
        with showing(self.model, shown):
            output = self.model(
                input_ids=ids.to(device),
                attention_mask=attention,
                position_ids=(positions[0] if shown is None else positions).to(device),
                logits_to_keep=1,
                use_cache=True,
                **options,
            )
        rows = torch.tensor([kinds[prompt] for prompt in prompts], device=device)
        cache = output[self._cache_key]
        cache.batch_select_indices(rows)
        return output.logits[:, -1][rows], cache, attention[rows], ends.to(device)[rows]


def _prompt(request: Request) -> Dialogue:
    return tuple(request.prompt_ids), request.pictures


def _draw(
    logits: Float[Tensor, "rows vocab"], uniforms: Sequence[float], temperature: float
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Draw one token per row by inverting the cumulative distribution, in fp32."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(dim=1)
    if temperature == 0:
        drawn = logprobs.argmax(dim=1)
    else:
        cumulative = logprobs.double().exp().cumsum(dim=1)
        draws = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
        thresholds = draws[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, thresholds, right=True).squeeze(1)
        drawn = drawn.clamp(max=logits.shape[1] - 1)
    return drawn, logprobs.gather(1, drawn[:, None]).squeeze(1)
