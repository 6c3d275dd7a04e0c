from __future__ import annotations

from pathlib import Path

import pytest

from fakes import FakeProvider
from harness import providers
from harness.errors import UsageError
from harness.providers import ABILITIES, CanCopy, CanPower, Provider, ability

NAMES = ("docker", "vagrant", "existing")


@pytest.mark.parametrize("needed", ABILITIES, ids=lambda needed: needed.__name__)
def test_hint_names_the_providers_that_have_the_ability(
    needed: type[Provider], tmp_path: Path
) -> None:
    able = [name for name in NAMES if isinstance(providers.get(name, tmp_path), needed)]
    assert ABILITIES[needed][1] == tuple(able)


def test_missing_ability_is_an_error_that_names_purpose_provider_and_alternatives(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError) as caught:
        ability(providers.get("vagrant", tmp_path), CanCopy, "upgrade")
    assert str(caught.value) == (
        "upgrade: provider vagrant cannot copy files of stopped hosts\nhint: --provider docker"
    )


def test_provider_with_an_ability_is_returned_as_it_is() -> None:
    provider = FakeProvider()
    assert ability(provider, CanPower, "kill-host ctl") is provider
