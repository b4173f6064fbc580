"""Run by test_interop.py where TRL is: its trainer lets a scripted model play Sokoban by tools and learns."""

import json
import sys
from pathlib import Path

import trl
from interop_game import plan
from sokoban_grpo import trainer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

SEED = 0
EXPERT_ROWS = 2


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with Qwen3's chat template, which takes tools."""
    marks = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks[:2])
    tokenizer.add_tokens(marks[2:])
    template = Path(trl.__file__).parent / "chat_templates/qwen3.jinja"
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=marks[1], pad_token=marks[1])
    fast.chat_template = template.read_text(encoding="utf-8")
    return fast


def main() -> None:
    """Train one step on games whose first two rows are played by the expert; print what came of it."""
    set_seed(0)
    tokenizer = byte_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    learner = trainer(
        Qwen2ForCausalLM(config), processing_class=tokenizer, num_generations=4, max_steps=1,
        per_device_train_batch_size=4, max_completion_length=4096, report_to=[], use_cpu=True,
        logging_steps=1, shuffle_dataset=False, save_strategy="no", bf16=False, learning_rate=1e-2,
    )  # fmt: skip
    moves, total = plan(SEED)

    def scripted(prompt_ids, *_args, **_kwargs):
        replies = []
        for row, ids in enumerate(prompt_ids):
            number = tokenizer.decode(ids).count("<tool_response>")
            call = {"name": "move", "arguments": {"direction": moves[min(number, len(moves) - 1)]}}
            text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>" if number < len(moves) else "Done."
            is_expert = row < EXPERT_ROWS or len(prompt_ids) <= EXPERT_ROWS
            replies.append(tokenizer.encode((text if is_expert else "I do not know.") + "<|im_end|>"))
        return replies, None

    learner._generate_single_turn = scripted
    before = learner.model.lm_head.weight.detach().clone()
    learner.train()
    log = next(line for line in learner.state.log_history if "reward" in line)
    changed = not before.equal(learner.model.lm_head.weight.detach())
    calls = {key: value for key, value in log.items() if key.startswith(("tools/", "rewards/"))}
    print(json.dumps({"log": calls, "moves": len(moves), "return": total, "learned": changed}))


if __name__ == "__main__":
    sys.exit(main())
