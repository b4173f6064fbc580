"""Train an implicit process reward model on one preference and see which step it credits.

Two games of one task differ in their second step only: one wins, the other loses. After a few
updates on that one pair, the step they share gets the same reward in both, and the step that
decided gets more where it won. Run: python examples/04_credit_a_step.py
"""

import torch
from torch import Tensor

from istar_trainer.implicit_reward import (
    pair_loss,
    score_weights,
    step_rewards,
    token_log_ratios,
    trajectory_scores,
)

BETA = 0.05
STATES, ACTIONS = 3, 4
# Rows are steps: (game, state, action). Both games start with the same step.
GAME = torch.tensor([0, 0, 1, 1])
STATE = torch.tensor([0, 1, 0, 1])
ACTION = torch.tensor([2, 3, 2, 0])
MASK = torch.ones(len(GAME), 1, dtype=torch.bool)  # every reply is one sampled token


def logprobs(table: Tensor) -> Tensor:
    """Log-probability of each row's action under a softmax table [states, actions]."""
    return table.log_softmax(dim=1)[STATE, ACTION].unsqueeze(1)


def rewards(prm: Tensor, old: Tensor) -> Tensor:
    """Implicit reward of each step: β (log π_φ − log π_old)."""
    return step_rewards(token_log_ratios(logprobs(prm), logprobs(old), MASK), MASK, beta=BETA)


def main() -> None:
    """Fit the pair and print the reward of every step."""
    old = torch.zeros(STATES, ACTIONS)
    prm = old.clone().requires_grad_()
    optimizer = torch.optim.Adam([prm], lr=0.1)
    weights = score_weights(GAME, MASK, torch.ones(4, dtype=torch.bool), num_trajectories=2, score="sum")
    winner, loser, weight = torch.tensor([0]), torch.tensor([1]), torch.ones(1)
    for _ in range(20):
        scores = trajectory_scores(rewards(prm, old), GAME, weights, num_trajectories=2)
        optimizer.zero_grad()
        pair_loss(scores, winner, loser, weight).loss.backward()
        optimizer.step()
    for game, state, action, reward in zip(GAME, STATE, ACTION, rewards(prm, old), strict=True):
        name = "won " if game == 0 else "lost"
        print(f"game {name}: step in state {state}, action {action}: reward {reward:+.3f}")


if __name__ == "__main__":
    main()
