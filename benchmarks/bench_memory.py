"""What the options of the section Memory save. Run with `python -m pytest benchmarks/bench_memory.py -s`.

Tokens are counted on demonstrations of the two tiny configurations, as they are and with two past steps
in the prompt. The peak of the process is that of one forward and backward pass of 1024 response tokens
over a vocabulary of 150,000, in a process of its own.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from istar_trainer.batch import StepBatch
from istar_trainer.config import RunConfig
from istar_trainer.config_files import read_tree
from istar_trainer.factories import make_env
from istar_trainer.learner import TorchModel
from istar_trainer.sft import demonstrate, demonstration_batch
from istar_trainer.tiny import init_tiny
from istar_trainer.weights import load_model

ROOT = Path(__file__).parents[1]
ROWS = 96
PEAK = """
import re, sys
from pathlib import Path
sys.path.insert(0, "tests")
from builders import make_lm, make_trajectory
from istar_trainer.batch import collate
from istar_trainer.model import forward
from istar_trainer.records import Step
import torch
steps = [Step([n, n + 1], list(range(3, 259)), [0.0] * 256) for n in range(3, 7)]
batch = collate([make_trajectory("t", "g", steps)], ["g"])
model = make_lm(vocab=150_000)
def mib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = mib("VmRSS")
out = forward(model, batch, torch.arange(4), temperature=1.0, logits_mib=int(sys.argv[1]))
(-out.logprobs().mean() - out.entropy().mean()).backward()
print(mib("VmHWM") - before)
"""


def rows_of(name: str, window: int, folder: Path) -> tuple[torch.nn.Module, StepBatch]:
    """Demonstrations of a configuration, and a tiny model that reads them."""
    tree = read_tree(ROOT / f"configs/{name}.yaml")
    tree["env"]["window"] = window
    tree["warm_start"]["episodes"] = 40
    config = RunConfig.model_validate(tree)
    env = make_env(config.env, "train")
    path = init_tiny(
        env,
        folder / "model",
        template=config.env.template,
        window=window,
        hidden_size=64,
        num_layers=3,
        num_heads=2,
        episodes=50,
        seed=0,
    )
    model, tokenizer = load_model(path)
    steps = demonstrate(env, tokenizer, config.env, config.warm_start, seed=0)
    env.close()
    return model, demonstration_batch(steps[:ROWS])


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("name", ["tiny_cpu", "webshop_istar_tiny"])
def test_tokens_computed_padded_and_packed(name, window, tmp_path):
    model, batch = rows_of(name, window, tmp_path)
    num_real = int(batch.attention_mask.sum())
    kinds = torch.unique(torch.cat([batch.input_ids, batch.attention_mask.long()], dim=1), dim=0)
    num_distinct = int(kinds.chunk(2, dim=1)[1].sum())
    print(
        f"\n{name}, window {window}: {len(batch)} rows, {num_real} tokens, "
        f"{num_distinct} of them in distinct rows"
    )
    computed = 0

    def count(_model, _arguments, options):
        nonlocal computed
        computed += options["input_ids"].numel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    for size in (2048, 65_536):
        found = []
        for packing in (False, True):
            reader = TorchModel(model, temperature=1.0, micro_batch_tokens=size, packing=packing)
            computed, start = 0, time.process_time()
            logprobs = reader.logprobs(batch)
            found.append((computed, time.process_time() - start, logprobs))
        (padded, padded_s, one), (packed, packed_s, other) = found
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
        print(
            f"  {size:6d} tokens a pass: padded {padded} ({padded / num_distinct:.2f}, {padded_s:.1f} s), "
            f"packed {packed} ({packed / num_distinct:.2f}, {packed_s:.1f} s)"
        )


def test_peak_of_logits_over_a_vocabulary_of_150000():
    peak = {}
    for mib in (4096, 512, 64):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(mib)], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
        )
        peak[mib] = int(done.stdout)
        print(f"\nlogits_mib {mib}: {peak[mib]} MiB above the model", end="")
    print()
    assert peak[64] < peak[4096] / 3
