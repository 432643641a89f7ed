"""Where requests that tenants ask for may go: to public addresses, and to what the operators name. Pure.

Invariant: an address is judged as the number that a connection is made to, never as a name; what is neither public nor
named is refused, in whatever form it is written.
"""

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Outbound(NamedTuple):
    """What is let through beside public addresses: hosts by name, whatever they resolve to, and networks."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def allows(self, host: str, address: Address) -> bool:
        """Whether a connection to this address may be made for this host."""
        if host.lower().rstrip(".") in self.hosts:
            return True
        return all(self._allows(each) for each in _meant(address))

    def _allows(self, address: Address) -> bool:
        named = any(address.version == network.version and address in network for network in self.networks)
        return named or (address.is_global and not address.is_multicast)


def parse_outbound(text: str) -> Outbound:
    """`host, 10.0.0.0/8, 192.0.2.7`. Raises `ValueError` for what is none of them."""
    hosts: set[str] = set()
    networks: list[Network] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError:
            if not all(char.isalnum() or char in "-._" for char in part) or part[0] in "-.":
                raise ValueError(
                    "is a list of host names, addresses and networks, such as hooks.internal,10.1.0.0/16"
                ) from None
            hosts.add(part.lower())
    return Outbound(frozenset(hosts), tuple(networks))


def literal(host: str) -> Address | None:
    """The address that a host of a URL is written as, if it is one."""
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _meant(address: Address) -> Iterable[Address]:
    """The address, and those of the older protocol that it stands for."""
    yield address
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo
        if address in _NAT64:
            yield IPv4Address(int(address) & 0xFFFFFFFF)


_NAT64 = IPv6Network("64:ff9b::/96")
