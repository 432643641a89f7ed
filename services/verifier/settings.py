"""Settings of the verifier.

Invariant: it needs none of its own: what to run stands in the task or with the workspace's host.
"""

from libs.chassis.settings import ServiceSettings


class VerifierSettings(ServiceSettings):
    """Those of every service."""
