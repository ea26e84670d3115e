"""A real Ray on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray with two CPUs."""
    ray = pytest.importorskip("ray", reason="needs pip install 'mnar[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Commands that a test calls in this process set this variable; the fixture removes it at its end.
        patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
        patch.delenv("RAY_BACKEND_LOG_LEVEL")
        context = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield context.address_info["address"]
        ray.shutdown()
