"""What the scheduler reads from the environment, beyond what every service reads."""

from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field, InstanceOf, SecretStr, model_validator

from libs.chassis.settings import (
    QUEUED_RUNS_DEFAULT,
    DeploymentLimits,
    ServiceSettings,
    TenantQueuedMax,
    TenantRunsMax,
    WebhookAllow,
)
from libs.contracts.tasks import Limits
from libs.policy.outbound import Outbound
from services.scheduler.sources.configuration import (
    DirectorySource,
    GitHubSource,
    LinearSource,
    read_sources,
)


def _sources(value: object) -> object:
    return tuple(read_sources(value).items()) if isinstance(value, str) else value


# A date must stay one.
RETENTION_DAYS_MAX = 100 * 365


class SchedulerSettings(ServiceSettings):
    """`tenant_runs_max` caps how many runs of a tenant are executed at once, children aside; others stay queued, up to
    `tenant_queued_max`, and tasks that are published beyond those wait on the bus."""

    tenant_runs_max: TenantRunsMax = None
    tenant_queued_max: TenantQueuedMax = QUEUED_RUNS_DEFAULT
    limits: DeploymentLimits = Limits()
    webhook_allow: WebhookAllow = Outbound()
    retention_days: Annotated[
        float | None, Field(alias="PERDURE_RETENTION_DAYS", gt=0, le=RETENTION_DAYS_MAX)
    ] = None
    # A folder, `none`, or nothing: `<data>/exports`.
    retention_export: Annotated[str, Field(alias="PERDURE_RETENTION_EXPORT")] = ""
    sources: Annotated[
        tuple[
            tuple[str, InstanceOf[DirectorySource] | InstanceOf[GitHubSource] | InstanceOf[LinearSource]], ...
        ],
        BeforeValidator(_sources),
        Field(alias="PERDURE_SOURCES"),
    ] = ()
    linear_api_key: Annotated[SecretStr | None, Field(alias="LINEAR_API_KEY")] = None

    @model_validator(mode="after")
    def _linear_has_keys(self) -> "SchedulerSettings":
        for name, source in self.sources:
            keyed = not isinstance(source, LinearSource) or source.token_file is not None
            if not keyed and self.linear_api_key is None:
                raise ValueError(f"PERDURE_SOURCES {name} needs a key: set LINEAR_API_KEY, or its token_file")
        return self

    @property
    def linear_key(self) -> str:
        """The key of Linear's sources that name no file; empty without one."""
        return self.linear_api_key.get_secret_value() if self.linear_api_key is not None else ""

    @property
    def export_folder(self) -> Path | None:
        """Where the runs that the retention takes away are exported to; `None`: nowhere."""
        if self.retention_export == "none":
            return None
        return Path(self.retention_export) if self.retention_export else self.data / "exports"


class TenantQuota(NamedTuple):
    """How many runs of a tenant are executed at once (`None`: as many as there are slots), and how many wait behind them."""

    runs_max: int | None = None
    queued_max: int = QUEUED_RUNS_DEFAULT


class Timing(NamedTuple):
    """How patient the scheduler is, in seconds. Not configurable: tests shorten it to see what it does.

    `tick_s`: how often due retries, expired tickets and suspects are looked at, all in memory.
    `claim_s`: a ticket that is not claimed by then no longer counts against the slots; as long as the bus takes to
    give it to another executor.
    `resend_s`: a ticket that is not claimed by then is taken for lost; one looks twice in that time. `alone_s`: the same
    for a run that a process is made for, whose ticket is held meanwhile (`held_s` of its consumer): a second ticket would
    make a second process. `sweep_s`: how often other lost things are looked for.
    `lead_s`: the lease of the leader, renewed three times in that time.
    `journal_kept_s`: how long after its end a run's journal is kept; `journals_s`: how often old ones, and what came
    behind a deletion, are looked for.
    `snapshot_kept_s`: how long a snapshot's object stays that no workspace needs any more; bringing one back, or storing
    one before its event, takes minutes at most.
    """

    tick_s: float = 1.0
    claim_s: float = 5.0
    resend_s: float = 10.0
    alone_s: float = 30.0
    sweep_s: float = 30.0
    lead_s: float = 3.0
    journal_kept_s: float = 24 * 3600.0
    journals_s: float = 600.0
    snapshot_kept_s: float = 3600.0
