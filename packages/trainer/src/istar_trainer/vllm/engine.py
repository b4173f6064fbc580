"""vLLM inside this process, for GPUs that learner and sampler share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from istar_envs.errors import ConfigError
from istar_trainer.context import Prompt
from istar_trainer.pictures import PlacedPicture
from istar_trainer.sampler import Completion, Request
from istar_trainer.vllm.pictures import engine_prompt
from istar_trainer.vllm.wire import SamplerDown, make_completion


class VllmEngine:
    """Speaks to an engine of its own.

    Args:
        arguments: Engine arguments for a folder of weights.
        pixels: Precision of pictures.

    Raises:
        ConfigError: If vLLM is not installed beside the trainer.
    """

    def __init__(self, arguments: Callable[[Path], Mapping[str, Any]], *, pixels: torch.dtype) -> None:
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(
                "sampler.mode: engine needs vLLM in the trainer's own environment (scripts/make_vllm_venv.sh "
                "makes one that has both). Or use mode: server with sampler.python."
            ) from error
        self._vllm = vllm
        self._arguments = arguments
        self._pixels = pixels
        self._llm: Any = None
        self._adapter: Any = None

    def start(self, model: Path) -> bool:
        """Make an engine, which reads the weights of a folder; raises SamplerDown if it cannot be made."""
        self.stop()
        self._llm = self._guarded(lambda: self._vllm.LLM(**self._arguments(model)))
        return True

    def is_alive(self) -> bool:
        """Whether there is an engine that has not failed."""
        return self._llm is not None

    def answer(
        self,
        requests: Sequence[Request],
        parameters: Sequence[Mapping[str, Any]],
        done: Callable[[int, Completion], None],
    ) -> None:
        """Ask for replies; see ``VllmServer.answer``."""
        prompts = [Prompt(list(request.prompt_ids), request.pictures) for request in requests]
        for place, output in enumerate(self._generate(prompts, parameters)):
            reply = output.outputs[0]
            ids = list(reply.token_ids)
            logprobs = [entry[i].logprob for entry, i in zip(reply.logprobs or [], ids, strict=True)]
            done(place, make_completion(ids, logprobs, reply.finish_reason))

    def prompt_logprobs(self, ids: Sequence[int], pictures: Sequence[PlacedPicture] = ()) -> list[float]:
        """Score a text: the logprob of every token but the first, at temperature 1."""
        parameters = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        entries = self._generate([Prompt(list(ids), tuple(pictures))], [parameters])[0].prompt_logprobs
        return [float(entry[i].logprob) for entry, i in zip(entries[1:], ids[1:], strict=True)]

    def load_weights(self, folder: Path) -> None:
        """Take over the weights of a folder and forget what was cached for the old ones."""
        reload = {"weights_path": str(folder)}
        self._guarded(lambda: self._llm.collective_rpc("reload_weights", kwargs=reload))
        self._forget()

    def load_adapter(self, name: str, folder: Path) -> None:
        """Use a LoRA adapter from now on, in place of the one before."""
        from vllm.lora.request import LoRARequest

        number = 1 if self._adapter is None else self._adapter.lora_int_id + 1
        self._adapter = LoRARequest(name, number, str(folder))

    def sleep(self) -> None:
        """Leave the GPU's memory to others."""
        self._guarded(lambda: self._llm.sleep(level=1))

    def wake(self) -> None:
        """Take the GPU's memory back."""
        self._guarded(self._llm.wake_up)
        self._forget()

    def stop(self) -> None:
        """Give the engine up."""
        self._llm = self._adapter = None

    def close(self) -> None:
        """Give the engine up."""
        self.stop()

    def diagnosis(self) -> str:
        """What there is to say about an engine that does not work."""
        return "vLLM's own messages are above."

    def _generate(self, prompts: Sequence[Prompt], parameters: Sequence[Mapping[str, Any]]) -> list[Any]:
        found: list[Any] = self._guarded(lambda: self._run(prompts, parameters))
        return found

    def _run(self, prompts: Sequence[Prompt], parameters: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Run the engine below ``LLM``, whose ``generate`` would look for the places of pictures."""
        engine = self._llm.llm_engine
        once = self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        for number, (prompt, one) in enumerate(zip(prompts, parameters, strict=True)):
            drawing = self._vllm.SamplingParams(**one, detokenize=False, output_kind=once)
            ready = engine_prompt(prompt, self._pixels)
            engine.add_request(str(number), ready, drawing, lora_request=self._adapter)
        finished: dict[int, Any] = {}
        while engine.has_unfinished_requests():
            finished |= {int(output.request_id): output for output in engine.step()}
        return [finished[number] for number in range(len(prompts))]

    def _forget(self) -> None:
        if self._guarded(self._llm.reset_prefix_cache) is False:
            raise SamplerDown("the prefix cache could not be emptied")
        self._guarded(self._llm.llm_engine.reset_encoder_cache)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """The boundary to vLLM, which raises anything: what failed is given up, and may be made again."""
        try:
            return action()
        except Exception as error:
            self.stop()
            raise SamplerDown(f"{type(error).__name__}: {error}") from error
