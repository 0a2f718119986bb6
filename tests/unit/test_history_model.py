"""The checker on histories as real clients make them, from a model store: silent while it keeps the promises, loud when it breaks one."""

from __future__ import annotations

import pytest

from tests.history import Bounds, check
from tests.unit.history_model import FAULTS, LEASE, Model

BOUNDS = Bounds(lease=LEASE)


@pytest.mark.parametrize("seed", range(20))
def test_a_store_that_keeps_its_promises_is_not_accused(seed: int) -> None:
    assert check(Model(seed).run(1_000), BOUNDS) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_breaks_one_is_found_out(fault: str) -> None:
    reported = (violation.rule for seed in range(10) for violation in check(Model(seed, fault).run(1_000), BOUNDS))
    assert FAULTS[fault] in reported
