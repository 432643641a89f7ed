"""Who is asking: the one place where a request gets its tenant.

Invariant: every secret is compared in constant time and all of them are compared, so a response time tells nothing
about any secret. Without secrets only this machine is served, under a name that is its own.
"""

import hmac
from collections.abc import Mapping
from ipaddress import ip_address

from pydantic import SecretStr

from libs.contracts.errors import Unauthorized

# The tenant of trusted-local mode, and what an operator is called: no tenant can have that name.
LOCAL, OPERATOR = "local", "(operator)"


class Keyring:
    """Tenants by their bearer secrets; without any, everybody on this machine is the tenant `local` and an operator."""

    def __init__(
        self, keys: Mapping[str, tuple[SecretStr, ...]], operator_key: SecretStr | None = None
    ) -> None:
        self._operator = operator_key.get_secret_value().encode() if operator_key is not None else None
        self._secrets = [
            (tenant, secret.get_secret_value().encode())
            for tenant, secrets in keys.items()
            for secret in secrets
        ]

    @property
    def secure(self) -> bool:
        return bool(self._secrets)

    def tenant(self, headers: Mapping[str, str]) -> str:
        """The tenant that the headers of a request prove. Raises `Unauthorized`."""
        if not self._secrets:
            return _local(headers)
        given = _bearer(headers)
        found: str | None = None
        for tenant, secret in self._secrets:
            if hmac.compare_digest(given, secret):
                found = tenant
        if found is None:
            raise Unauthorized("send 'Authorization: Bearer <secret>' with a secret of RUNTIME_API_KEYS_JSON")
        return found

    def operator(self, headers: Mapping[str, str]) -> str:
        """Who operates the deployment, as the headers of a request prove. Raises `Unauthorized`."""
        if not self._secrets:
            return _local(headers)
        if self._operator is None:
            raise Unauthorized("this is for operators, and none is configured: set PERDURE_OPERATOR_KEY")
        if not hmac.compare_digest(_bearer(headers), self._operator):
            raise Unauthorized("this is for operators: send 'Authorization: Bearer <PERDURE_OPERATOR_KEY>'")
        return OPERATOR

    def anybody(self, headers: Mapping[str, str]) -> str:
        """Whoever holds any secret at all, tenant or operator. Raises `Unauthorized`."""
        try:
            return self.tenant(headers)
        except Unauthorized:
            if self._operator is not None and hmac.compare_digest(_bearer(headers), self._operator):
                return OPERATOR
            raise


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only mean the machine that uses it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _bearer(headers: Mapping[str, str]) -> bytes:
    """The secret of a request; empty, which is nobody's, when there is none."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return credentials.strip().encode("utf-8", "replace") if scheme.lower() == "bearer" else b""


def _local(headers: Mapping[str, str]) -> str:
    """The tenant of this machine. A browser on it also carries the requests of foreign pages, to whatever address the names
    of their sites are made to mean (DNS rebinding); their `Host` is what tells them apart. Raises `Unauthorized`."""
    host = headers.get("host", "localhost")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name.lower()):
        raise Unauthorized(
            f"without RUNTIME_API_KEYS_JSON this gateway is asked for as localhost or 127.0.0.1, not as {name[:80]!r}"
        )
    return LOCAL
