"""Who may remove what from shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from chattts_triton.errors import ServerStartError
from chattts_triton.server.shared_memory import (
    check_free_space,
    claimed_prefix,
    remove_leftovers,
)


def test_all_that_carries_the_prefix_goes_with_its_context(tmp_path: Path) -> None:
    with claimed_prefix(tmp_path) as prefix:
        (tmp_path / f"{prefix}region").touch()
        (tmp_path / f"{prefix}backends" / "python").mkdir(parents=True)
        (tmp_path / "foreign").touch()

    assert [path.name for path in tmp_path.iterdir()] == ["foreign"]


def test_every_claim_has_its_own_prefix(tmp_path: Path) -> None:
    with claimed_prefix(tmp_path) as first, claimed_prefix(tmp_path) as second:
        assert first != second


def test_b88_left_over_regions_of_a_dead_owner_are_removed_and_others_are_kept(
    tmp_path: Path,
) -> None:
    for name in ("chattts_1_0a_owner", "chattts_1_0a_region", "chattts_1_0b_region", "chattts_x"):
        (tmp_path / name).touch()

    with claimed_prefix(tmp_path) as living:
        (tmp_path / f"{living}region").touch()

        remove_leftovers(tmp_path)

        assert {path.name for path in tmp_path.iterdir()} == {
            "chattts_1_0b_region",
            "chattts_x",
            f"{living}owner",
            f"{living}region",
        }


def test_a_left_over_that_may_not_be_opened_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "chattts_1_0a_owner").mkdir()

    remove_leftovers(tmp_path)

    assert (tmp_path / "chattts_1_0a_owner").exists()


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerStartError, match="missing: No such file"),
        claimed_prefix(tmp_path / "missing"),
    ):
        pass


def test_b88_too_small_a_shared_memory_states_the_need(tmp_path: Path) -> None:
    num_models = 1 << 30

    with pytest.raises(ServerStartError, match=f"{num_models} Python models need {num_models} MB"):
        check_free_space(num_models, tmp_path)


def test_three_models_fit(tmp_path: Path) -> None:
    check_free_space(3, tmp_path)
