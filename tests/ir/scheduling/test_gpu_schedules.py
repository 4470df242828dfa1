"""Schedules for a GPU: who shares what."""

from __future__ import annotations

import pytest

from bolide.inductor.ir.loops import Axis
from bolide.inductor.machine import HOPPER
from bolide.inductor.schedule.nest import Schedule, in_teams
from bolide.symbolic import Expr


@pytest.mark.parametrize(
    "columns, rows, team",
    [
        (1024, 1024, 32),  # few results: teams share the rows
        (8, 4096, 512),
        (1024, 32, 1),  # each thread has little to do
        (1 << 15, 1024, 1),  # enough threads
        (1 << 12, 1 << 14, 1),  # so much that it is to be read in order
    ],
)
def test_few_results_of_long_columns_are_shared(columns: int, rows: int, team: int) -> None:
    outer = (Axis("j", Expr.const(columns), "vector"),)
    inner = (Axis("i", Expr.const(rows), "reduce"),)
    schedule = in_teams(Schedule(outer, inner, (), 1), HOPPER, False, {})
    assert schedule.team == team
    assert schedule.vector == ("i" if team > 1 else "j")


@pytest.mark.parametrize(("columns", "teams"), [(1000, (32, 32)), (2048, (128, 32)), (4096, (128, 128))])
def test_teams_that_look_for_places_have_fewer_threads(columns: int, teams: tuple[int, int]) -> None:
    row = Axis("j", Expr.const(columns), "reduce_vector")
    schedule = Schedule((Axis("i", Expr.const(64), "parallel"),), (row,), (), 1).with_vector("j", "")
    assert tuple(in_teams(schedule, HOPPER, picks, {}).team for picks in (False, True)) == teams


@pytest.mark.parametrize(
    "rows, columns, team", [(16, 4096, 512), (1, 4096, 128), (2, 1024, 128), (64, 49, 32), (32, 16, 32), (1, 64, 32)]
)
def test_teams_of_several_loops(rows: int, columns: int, team: int) -> None:
    """A team is as large as all that it does asks for, if each loop has work for all of it."""
    inner = (Axis("i", Expr.const(rows), "reduce"), Axis("j", Expr.const(columns), "reduce_vector"))
    outer = (Axis("n", Expr.const(1 << 10), "parallel"),)
    assert in_teams(Schedule(outer, inner, (), 1), HOPPER, False, {}).team == team


@pytest.mark.parametrize("typical, team", [(50257, 1024), (16384, 512), (1000, 32), (16, 32)])
def test_rows_of_symbolic_length_have_the_team_of_a_typical_one(typical: int, team: int) -> None:
    """As rows of this length have that are known."""
    outer = (Axis("i", Expr.var("rows"), "parallel"),)
    for length in (Expr.var("length"), Expr.const(typical)):
        schedule = Schedule(outer, (Axis("j", length, "reduce_vector"),), (), 1)
        assert in_teams(schedule, HOPPER, False, {"rows": 64, "length": typical}).team == team


@pytest.mark.parametrize("typical, team", [(200, 32), (1 << 15, 1)])
def test_few_results_of_symbolic_number_share_rests(typical: int, team: int) -> None:
    """A rest is at most what divides it, whatever it is for typical sizes."""
    outer = (Axis("j", Expr.var("columns"), "vector"),)
    schedule = Schedule(outer, (Axis("i", Expr.var("rows") % 128, "reduce"),), (), 1)
    assert in_teams(schedule, HOPPER, False, {"rows": 1280, "columns": typical}).team == team


@pytest.mark.parametrize("rows, team", [(1, 1024), (255, 1024), (256, 512), (1 << 15, 512)])
def test_only_few_rows_have_the_largest_teams(rows: int, team: int) -> None:
    outer, inner = (Axis("i", Expr.const(rows), "parallel"),), (Axis("j", Expr.const(50257), "reduce_vector"),)
    assert in_teams(Schedule(outer, inner, (), 1), HOPPER, False, {}).team == team


@pytest.mark.parametrize("rows, length, team", [(1, 4096, 512), (1, 1 << 15, 1024), (16, 300, 128), (17, 4096, 128)])
def test_lone_teams_have_more_threads(rows: int, length: int, team: int) -> None:
    """Nothing else hides how long their loads take."""
    outer, inner = (Axis("i", Expr.const(rows), "parallel"),), (Axis("j", Expr.const(length), "reduce_vector"),)
    assert in_teams(Schedule(outer, inner, (), 1), HOPPER, False, {}).team == team
