"""Commands open runs whose hosts are up."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import SCENARIO, FakeProvider
from harness import lifecycle, providers
from harness.cli import opening
from harness.errors import UsageError


def test_run_whose_hosts_were_removed_is_refused_where_hosts_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FakeProvider()
    monkeypatch.setattr(providers, "get", lambda *_: provider)
    run = lifecycle.create(SCENARIO, provider, tmp_path, print)
    provider.up(run.directory, run.plan, run.plan.hosts)
    assert opening.open_run(tmp_path, None).directory.id == run.directory.id

    provider.down(run.directory.id)
    with pytest.raises(UsageError, match=f"{run.directory.path} is not up") as refused:
        opening.open_run(tmp_path, None)
    assert "harness up" in str(refused.value.hint)
    assert opening.open_run(tmp_path, None, only_up=False).directory.id == run.directory.id
