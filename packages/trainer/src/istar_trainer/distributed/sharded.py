"""Models of which every process computes its share of each batch.

All processes call the same methods with the same batch. A share is a run of rows of similar length, so
that equal rows stay together; the values of tokens are summed over processes, which fills in what each
lacks, and so are gradients. Denominators are global already, since every process knows the whole batch.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from istar_trainer.batch import StepBatch
from istar_trainer.distributed.ranks import at, num_ranks, own_rank, summed
from istar_trainer.learner import RowLoss, TokenValue, TorchLearner, TorchModel
from istar_trainer.model import Forward


class ShardedModel(TorchModel):
    """A whole model in every process, each of which reads its own rows."""

    def parts(self, batch: StepBatch) -> Iterator[Int[Tensor, " some"]]:
        """Yield the rows of each forward pass of this process.

        Every process yields equally often, without rows where it has none left, so that all of them take
        part in the same collectives.
        """
        plans = [
            [rows[local] for local in super(ShardedModel, self).parts(batch.select(rows))]
            for rows in row_shares(batch, num_ranks(), merge_prefixes=self.merge_prefixes)
        ]
        own = plans[own_rank()]
        yield from own
        for _ in range(max(map(len, plans)) - len(own)):
            yield torch.zeros(0, dtype=torch.int64)

    def complete(self, values: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Fill in what other processes found for their rows; each has left 0 at rows that are not its own."""
        return summed(values, "values of all rows")

    def forward(self, batch: StepBatch, rows: Int[Tensor, " some"]) -> Forward:
        """Run the model over some rows; carries gradient if grad mode is on.

        Without rows, the first row is computed and nothing of it is kept.
        """
        if len(rows):
            return super().forward(batch, rows)
        out = super().forward(batch, torch.zeros(1, dtype=torch.int64))
        return replace(out, inverse=out.inverse[:0])

    def token_values(self, batch: StepBatch, value: TokenValue) -> Float[Tensor, "rows seq"]:
        """Any per-token function of the model's logits; no gradient."""
        with at("scoring"):
            return super().token_values(batch, value)


class ShardedLearner(ShardedModel, TorchLearner):
    """A whole model and AdamW in every process; gradients are summed before each step."""

    def backward(self, batch: StepBatch, loss: RowLoss, rows: Int[Tensor, " some"] | None = None) -> float:
        """Accumulate the gradient of a loss that is a sum over rows; every process returns the whole loss.

        Raises:
            NonFiniteLoss: On every process, if it is NaN or infinite on one.
        """
        with at("backward pass"):
            return super().backward(batch, loss, rows)

    def step(self) -> float:
        """Add the gradients up, clip, update the weights and clear the gradient."""
        with at("step of the optimizer"):
            self.share_gradient()
            return super().step()

    def share_gradient(self) -> None:
        """Replace every process's gradient by the sum over processes."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        sums = [dist.all_reduce(p.grad, async_op=True) for p in parameters if p.grad is not None]
        for each in sums:
            each.wait()


def row_shares(
    batch: StepBatch, num_shares: int, *, merge_prefixes: bool = False
) -> list[Int[Tensor, " some"]]:
    """Divide the rows of a batch among processes by their tokens.

    Args:
        batch: The rows.
        num_shares: Number of processes.
        merge_prefixes: Whether rows that are the beginning of longer ones go with these and cost nothing.

    Returns:
        The rows of each process, of similar length; some may be empty.
    """
    lengths = batch.attention_mask.sum(dim=1)
    families = batch.families() if merge_prefixes else []
    if not families:
        keys = batch.input_ids.tolist()
        sizes = lengths.tolist()
        families = [[row] for row in sorted(range(len(keys)), key=lambda row: (sizes[row], keys[row], row))]
    costs = lengths[torch.tensor([family[0] for family in families])]
    owner = (costs.cumsum(dim=0) - costs) * num_shares // costs.sum()
    owner = owner.repeat_interleave(torch.tensor([len(family) for family in families]))
    order = torch.tensor([row for family in families for row in family])
    return [order[owner == share] for share in range(num_shares)]
