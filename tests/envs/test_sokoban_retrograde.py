import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sokoban_search import board, fewest, random_board

from istar_envs.sokoban.bits import cells_of, nth_cell
from istar_envs.sokoban.board import State, move
from istar_envs.sokoban.deadlocks import floor_of
from istar_envs.sokoban.retrograde import distances

sizes = st.tuples(st.integers(0, 10**6), st.integers(4, 7), st.integers(4, 7), st.integers(1, 3))


def test_one_push_level_is_one_move_from_its_goal() -> None:
    layout, start = board("#####\n#@$.#\n#####")
    table = distances(layout, 1)
    assert table is not None
    assert table.moves_left(start) == 1
    assert table.moves_left(State(1 << 8, 7)) == 0
    assert table.max_moves == 1


def test_walking_counts_as_moves() -> None:
    layout, start = board("#######\n#.-$--#\n#-@---#\n#######")
    table = distances(layout, 1)
    assert table is not None
    assert table.moves_left(start) == 5  # right, right, up, then two pushes to the left


def test_box_in_a_corner_has_no_distance() -> None:
    layout, start = board("#####\n#--$#\n#.@-#\n#####")
    table = distances(layout, 1)
    assert table is not None
    assert table.moves_left(start) is None


def test_table_that_would_be_too_large_is_not_made() -> None:
    row = "#" + "-" * 12 + "#\n"
    layout, _ = board("#" * 14 + "\n#@$.$.$." + "-" * 5 + "#\n" + row * 5 + "#" * 14)
    assert distances(layout, 3) is None


def test_other_numbers_of_boxes_than_of_targets_are_refused() -> None:
    layout, _ = board("#####\n#@$.#\n#####")
    with pytest.raises(ValueError, match="2 boxes for 1 targets"):
        distances(layout, 2)


@pytest.mark.property
@settings(max_examples=120, deadline=None)
@given(sizes)
def test_distances_equal_those_of_plain_search(size: tuple[int, int, int, int]) -> None:
    drawn = random_board(*size)
    assume(drawn is not None)
    assert drawn is not None
    layout, start = drawn
    table = distances(layout, size[3])
    assume(table is not None)
    assert table is not None
    assert table.moves_left(start) == fewest(layout, start, count_pushes=False)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(sizes)
def test_distances_differ_by_at_most_one_between_neighbours(size: tuple[int, int, int, int]) -> None:
    drawn = random_board(*size)
    assume(drawn is not None)
    assert drawn is not None
    layout, start = drawn
    table = distances(layout, size[3])
    assume(table is not None)
    assert table is not None
    here = table.moves_left(start)
    nexts = [table.moves_left(move(layout, start, action)) for action in range(4)]
    solvable = [moves for moves in nexts if moves is not None]
    if here is None:
        assert solvable == []
    elif here:
        assert min(solvable) == here - 1


def test_positions_are_sorted_by_their_optimum() -> None:
    layout, _ = board("######\n#.---#\n#-$--#\n#-@--#\n######")
    table = distances(layout, 1)
    assert table is not None
    found = table.positions(floor_of(layout))
    assert sorted(found) == list(range(table.max_moves + 1))
    states = []
    for moves, positions in found.items():
        picked = [table.pick(positions, rank) for rank in range(positions.bit_count())]
        assert all(table.moves_left(state) == moves for state in picked)
        states += picked
    cells = list(cells_of(floor_of(layout)))
    everything = [State(1 << box, player) for box in cells for player in cells if box != player]
    assert len(set(states)) == len(states)
    assert set(states) == {state for state in everything if table.moves_left(state) is not None}


def test_positions_can_be_limited_to_boxes_off_target() -> None:
    layout, _ = board("######\n#.$$.#\n#-@--#\n#----#\n######")
    table = distances(layout, 2)
    assert table is not None
    assert table.positions(floor_of(layout))[0].bit_count() == 2 * 10  # two orders, ten player cells
    away = table.positions(~layout.targets)
    assert 0 not in away
    assert all(
        not table.pick(found, rank).boxes & layout.targets
        for found in away.values()
        for rank in range(found.bit_count())
    )


def test_nth_cell_lists_a_field_in_order() -> None:
    field = 0b1010_0000_0001_0110
    assert [nth_cell(field, rank) for rank in range(5)] == [1, 2, 4, 13, 15]
    with pytest.raises(IndexError, match="rank 5 in a field of 5 cells"):
        nth_cell(field, 5)
