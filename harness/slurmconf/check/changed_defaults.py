"""Defaults that changed since the release that a configuration comes from."""

from __future__ import annotations

from collections.abc import Iterator

from harness import releases
from harness.releases import Release
from harness.slurmconf.check.findings import WARNING, Finding
from harness.slurmconf.check.parsed_file import Configuration


def check(configuration: Configuration, older: Release) -> Iterator[Finding]:
    """Yield the unset options whose default changed after `older`."""
    for name, defaults in releases.changed_defaults(older.name, configuration.release.name):
        for kind, changed in defaults.items():
            source = configuration.get(kind)
            if source is None:
                continue
            for option, default in changed.items():
                key, _, word = option.partition("=")
                value = source.get(key.lower())
                matters = (
                    not default.matters_with or default.matters_with.lower() in source.settings
                )
                if matters and (value is None or (word and word.lower() not in value.lower())):
                    message = (
                        f"the default changed with {name}: {default.before} before, now "
                        f"{default.now}"
                    )
                    hint = f"set {key} to keep the old behavior" if not word else ""
                    yield source.find_here(WARNING, "default", option, message, hint)
