import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sokoban_search import BOXOBAN, board, fewest, needs_boxoban, random_board, replay

from istar_envs.errors import EnvError
from istar_envs.sokoban import solver
from istar_envs.sokoban.bits import cells_of
from istar_envs.sokoban.board import DOWN, LEFT, RIGHT, UP, is_solved, move
from istar_envs.sokoban.deadlocks import dead_squares, is_frozen_deadlock
from istar_envs.sokoban.formats import read_levels
from istar_envs.sokoban.retrograde import distances
from istar_envs.sokoban.solver import solve_moves, solve_pushes

boards = st.tuples(st.integers(0, 10**6), st.integers(4, 7), st.integers(4, 7), st.integers(1, 3))


def test_solution_is_a_list_of_action_codes() -> None:
    layout, start = board("#####\n#@$.#\n#####")
    assert solve_moves(layout, start) == [RIGHT]
    solution = solve_pushes(layout, start)
    assert solution is not None
    assert (solution.actions, solution.num_pushes) == ([RIGHT], 1)


def test_solved_level_needs_no_actions_and_a_lost_one_has_no_solution() -> None:
    solved = board("#####\n#@*-#\n#####")
    lost = board("#####\n#-.-#\n#-@$#\n#####")
    assert solve_moves(*solved) == []
    assert solve_pushes(*solved) == solver.Solution([], 0, 0)
    assert solve_moves(*lost) is None
    assert solve_pushes(*lost) is None


def test_push_optimal_solution_walks_the_shortest_way() -> None:
    layout, start = board("#######\n#.-$--#\n#-@---#\n#######")
    solution = solve_pushes(layout, start)
    assert solution is not None
    assert solution.actions == [RIGHT, RIGHT, UP, LEFT, LEFT]
    assert solution.num_pushes == 2


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(boards)
def test_fewest_pushes_equal_those_of_plain_search(size: tuple[int, int, int, int]) -> None:
    drawn = random_board(*size)
    assume(drawn is not None)
    assert drawn is not None
    layout, start = drawn
    solution = solve_pushes(layout, start)
    expected = fewest(layout, start, count_pushes=True)
    if solution is None:
        assert expected is None
        return
    assert solution.num_pushes == expected
    assert is_solved(layout, replay(layout, start, solution.actions))


@pytest.mark.parametrize("tabulated", [True, False])
def test_fewest_moves_equal_those_of_plain_search(tabulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tabulated:
        monkeypatch.setattr(solver, "distances", lambda layout, num_boxes: None)
    num_solved = 0
    for seed in range(120):
        drawn = random_board(seed, 6, 7, 1 + seed % 3)
        if drawn is None:
            continue
        layout, start = drawn
        actions = solve_moves(layout, start)
        assert (None if actions is None else len(actions)) == fewest(layout, start, count_pushes=False)
        if actions is not None:
            assert is_solved(layout, replay(layout, start, actions))
            num_solved += 1
    assert num_solved > 40


def test_search_stops_at_its_limit_with_advice() -> None:
    layout, start = board("########\n#.-----#\n#-$----#\n#-$@-.-#\n#------#\n########")
    with pytest.raises(EnvError, match=r"in 3 positions\. Raise max_nodes"):
        solve_pushes(layout, start, max_nodes=3)


def test_more_boxes_than_targets_are_refused() -> None:
    layout, start = board("######\n#@$.-#\n#----#\n######")
    extra = type(start)(start.boxes | 1 << 14, start.player)
    with pytest.raises(ValueError, match="2 boxes for 1 targets"):
        solve_pushes(layout, extra)
    with pytest.raises(ValueError, match="2 boxes for 1 targets"):
        solve_moves(layout, extra)


def test_level_with_many_boxes_is_solved_with_the_looser_bound() -> None:
    top = "#" * 14
    layout, start = board(f"{top}\n#{'.' * 12}#\n#{'$' * 12}#\n#@{'-' * 11}#\n{top}")
    solution = solve_pushes(layout, start)
    assert solution is not None
    assert solution.num_pushes == 12
    assert is_solved(layout, replay(layout, start, solution.actions))


def test_dead_squares_of_a_room_are_its_corners_and_the_walls_without_target() -> None:
    layout, _ = board("######\n#.---#\n#-$--#\n#-@--#\n######")
    # A box on the right or bottom wall can never leave it; one on the top or left wall slides home.
    assert sorted(cells_of(dead_squares(layout))) == [10, 16, 19, 20, 21, 22]


def test_two_boxes_side_by_side_on_a_wall_are_frozen() -> None:
    layout, start = board("######\n#-$$-#\n#-@-.#\n#---.#\n######")
    assert is_frozen_deadlock(layout, start.boxes, 8, dead_squares(layout))


def test_frozen_boxes_on_targets_are_no_deadlock() -> None:
    layout, start = board("######\n#-**-#\n#-@--#\n#----#\n######")
    assert not is_frozen_deadlock(layout, start.boxes, 8, dead_squares(layout))


def test_one_box_off_target_in_a_frozen_square_is_a_deadlock() -> None:
    layout, start = board("#######\n#-----#\n#-**--#\n#-*$--#\n#-@-.-#\n#-----#\n#######")
    assert is_frozen_deadlock(layout, start.boxes, 2 * 7 + 2, dead_squares(layout))


def test_box_next_to_a_movable_box_is_not_frozen() -> None:
    layout, start = board("#######\n#-----#\n#-$$--#\n#-@---#\n#-..--#\n#-----#\n#######")
    assert not is_frozen_deadlock(layout, start.boxes, 2 * 7 + 2, dead_squares(layout))


@pytest.mark.property
@settings(max_examples=150, deadline=None)
@given(boards)
def test_positions_called_dead_have_no_solution(size: tuple[int, int, int, int]) -> None:
    drawn = random_board(*size)
    assume(drawn is not None)
    assert drawn is not None
    layout, start = drawn
    table = distances(layout, size[3])
    assume(table is not None)
    assert table is not None
    dead = dead_squares(layout)
    is_called_dead = start.boxes & dead or any(
        is_frozen_deadlock(layout, start.boxes, cell, dead) for cell in cells_of(start.boxes)
    )
    if is_called_dead:
        assert table.moves_left(start) is None


@needs_boxoban
def test_all_boxoban_levels_are_solved_with_the_known_numbers_of_pushes() -> None:
    pushes, nodes = [], []
    for level in read_levels(BOXOBAN):
        solution = solve_pushes(level.layout, level.start)
        assert solution is not None
        assert is_solved(level.layout, replay(level.layout, level.start, solution.actions))
        pushes.append(solution.num_pushes)
        nodes.append(solution.num_nodes)
    assert len(pushes) == 1000
    assert sum(pushes) == 12_195  # mean 12.20, found alike by plain breadth-first search
    assert max(pushes) == 35
    assert sum(nodes) / 1000 < 100  # a weaker bound or lost pruning shows here first


@needs_boxoban
def test_fewest_moves_of_large_levels_are_not_below_their_pushes() -> None:
    for level in read_levels(BOXOBAN)[2:14]:
        actions = solve_moves(level.layout, level.start)
        solution = solve_pushes(level.layout, level.start)
        assert actions is not None
        assert solution is not None
        assert is_solved(level.layout, replay(level.layout, level.start, actions))
        assert solution.num_pushes <= len(actions) <= len(solution.actions)


def test_all_four_actions_are_used_by_a_round_trip() -> None:
    layout, start = board("######\n#@---#\n#-##-#\n#--$.#\n######")
    actions = solve_moves(layout, start)
    assert actions == [DOWN, DOWN, RIGHT, RIGHT]
    assert move(layout, start, UP) is start
