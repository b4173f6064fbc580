"""Run by test_pair_datasets.py where TRL is: a step of its trainers on pairs that were written.

    python pairs_in_trl.py FOLDER MODEL

The folder has the data set ``set`` and the pickled ``examples`` that it was made of.
"""

import json
import pickle
import sys
from pathlib import Path

import datasets
import trl
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from istar_judges import to_dataset

OPTIONS = {
    "max_steps": 1,
    "per_device_train_batch_size": 2,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"


def main(folder: Path, model_path: Path) -> None:
    """Read the data set, train a step of each kind, and print what came of it."""
    read = datasets.load_dataset(str(folder / "set"), split="train", cache_dir=str(folder / "cache"))
    made = to_dataset(pickle.loads((folder / "examples").read_bytes()))
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.chat_template = TEMPLATE
    policy = AutoModelForCausalLM.from_pretrained(model_path)
    judge = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=1)
    judge.config.pad_token_id = tokenizer.pad_token_id
    out = str(folder / "out")
    trainers = {
        "dpo": (trl.DPOTrainer, policy, trl.DPOConfig(output_dir=out, **OPTIONS)),
        "reward": (trl.RewardTrainer, judge, trl.RewardConfig(output_dir=out, **OPTIONS)),
    }
    losses = {
        name: trainer(model=model, args=config, train_dataset=read, processing_class=tokenizer)
        .train()
        .training_loss
        for name, (trainer, model, config) in trainers.items()
    }
    found = {"columns": read.column_names, "read": read.to_list(), "made": made.to_list(), "losses": losses}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
