"""Where the Slurm of a host comes from: a distribution, a site's packages, or Slurm's source.

`Origin` says it, `reading` finds out which release is in packages or in a source, `families` knows
what differs between distributions.
"""

from harness.origins.families import (
    Base,
    Family,
    base,
    default_base,
    family,
    family_of,
    library_directories,
)
from harness.origins.model import NotAnOrigin, Origin, Wanted, is_origin, is_url, parse
from harness.origins.reading import foreign, package_paths, resolve

__all__ = [
    "Base",
    "Family",
    "NotAnOrigin",
    "Origin",
    "Wanted",
    "base",
    "default_base",
    "family",
    "family_of",
    "foreign",
    "is_origin",
    "is_url",
    "library_directories",
    "package_paths",
    "parse",
    "resolve",
]
