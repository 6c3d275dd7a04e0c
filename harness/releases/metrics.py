"""Who may read the metrics that slurmctld serves for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.releases.release import Release

Readers = Literal["anyone", "token", "nobody"]


def metric_readers(release: Release, option: Callable[[str], str | None]) -> Readers | None:
    """Return who may read a slurmctld's metrics; None if it serves none.

    `option` returns the value of an option of slurm.conf. "token" stands for root and SlurmUser
    with a token, and for the users in MetricsAuthUsers. slurmctld checks tokens only if
    SlurmctldHttpAuthParameters names their key: see _check_metrics_authorized() and http_init() in
    http.c, and _validate_and_set_defaults() in read_config.c. Up to 25.11, no token helps.
    """
    known = release.options["slurm.conf"]
    if "metricstype" not in known or not option("MetricsType"):
        return None
    hidden = (option("PrivateData") or "").lower()
    private = any(word in hidden for word in release.words["privatedata"].known)
    if "metricsauthusers" not in known:
        return "nobody" if private else "anyone"
    ignored = "ignore_private_data" in (option("MetricsParameters") or "").lower().split(",")
    if not option("MetricsAuthUsers") and (ignored or not private):
        return "anyone"
    return "token" if option("SlurmctldHttpAuthParameters") else "nobody"
