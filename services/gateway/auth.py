"""Who is asking: the one place where a request gets its tenant.

Invariant: every secret is compared in constant time and all of them are compared, so a response time tells nothing
about any secret.
"""

import hmac
from collections.abc import Mapping

from pydantic import SecretStr

from libs.contracts.errors import Unauthorized

# The tenant of trusted-local mode, and what an operator is called: no tenant can have that name.
LOCAL, OPERATOR = "local", "(operator)"


class Keyring:
    """Tenants by their bearer secrets; without any, everybody is the tenant `local` and an operator."""

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

    def tenant(self, authorization: str | None) -> str:
        """The tenant that an `Authorization` header proves. Raises `Unauthorized`."""
        if not self._secrets:
            return LOCAL
        given = _bearer(authorization)
        found: str | None = None
        for tenant, secret in self._secrets:
            if hmac.compare_digest(given, secret):
                found = tenant
        if found is None:
            raise Unauthorized("send 'Authorization: Bearer <secret>' with a secret of RUNTIME_API_KEYS_JSON")
        return found

    def operator(self, authorization: str | None) -> str:
        """Who operates the deployment, as an `Authorization` header proves. Raises `Unauthorized`."""
        if not self._secrets:
            return LOCAL
        if self._operator is None:
            raise Unauthorized("this is for operators, and none is configured: set PERDURE_OPERATOR_KEY")
        if not hmac.compare_digest(_bearer(authorization), self._operator):
            raise Unauthorized("this is for operators: send 'Authorization: Bearer <PERDURE_OPERATOR_KEY>'")
        return OPERATOR

    def anybody(self, authorization: str | None) -> str:
        """Whoever holds any secret at all, tenant or operator. Raises `Unauthorized`."""
        try:
            return self.tenant(authorization)
        except Unauthorized:
            if self._operator is not None and hmac.compare_digest(_bearer(authorization), self._operator):
                return OPERATOR
            raise


def _bearer(authorization: str | None) -> bytes:
    """The secret of a header; empty, which is nobody's, when there is none."""
    scheme, _, credentials = (authorization or "").partition(" ")
    return credentials.strip().encode("utf-8", "replace") if scheme.lower() == "bearer" else b""
