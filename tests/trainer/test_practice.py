import pytest
import torch

from istar_trainer.practice import practise_copying, repeated_pieces
from istar_trainer.tiny import make_model


@pytest.mark.parametrize("length", [64, 256])
def test_the_marked_tokens_follow_a_piece_that_stood_before(length):
    generator = torch.Generator().manual_seed(1)
    tokens, repeated = repeated_pieces(500, length=length, first_token=3, generator=generator)
    assert tokens.shape == (2048 // length, length)
    assert tokens.min() >= 3
    assert repeated[:, : length // 2 + 1].sum() == 0
    for row, marks in zip(tokens.tolist(), repeated.tolist(), strict=True):
        first = marks.index(True)
        piece = row[first - 1 : first + sum(marks)]
        assert len(piece) >= 6
        assert any(row[i : i + len(piece)] == piece for i in range(length // 2 - len(piece) + 1))


def test_practice_teaches_copying_and_depends_on_its_seed_alone():
    def practised(global_seed: int) -> tuple[float, torch.Tensor]:
        torch.manual_seed(global_seed)
        model = make_model(
            40, hidden_size=32, num_layers=2, num_heads=1, rope_theta=100.0, eos_token_id=2, seed=0
        )
        return practise_copying(
            model, updates=100, vocab_size=40, first_token=3, seed=5
        ), model.lm_head.weight

    accuracy, weights = practised(0)
    again, same = practised(1)
    assert accuracy == again > 0.05  # 0.027 by chance; copying itself takes some hundred updates
    assert torch.equal(weights, same)


def test_no_practice_changes_nothing():
    model = make_model(40, hidden_size=16, num_layers=1, num_heads=2, eos_token_id=2, seed=0)
    before = model.lm_head.weight.clone()
    assert practise_copying(model, updates=0, vocab_size=40, first_token=3, seed=0) == 0.0
    assert torch.equal(model.lm_head.weight, before)
