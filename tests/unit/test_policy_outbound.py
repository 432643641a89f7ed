"""Where requests of tenants may go: every form of an address that is not public is seen through."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from libs.policy.outbound import Outbound, parse_outbound


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:169.254.169.254", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not Outbound().allows("a.example", ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_what_is_public_is_let_through(address: str) -> None:
    assert Outbound().allows("a.example", ip_address(address))


def test_operators_name_hosts_and_networks() -> None:
    allowed = parse_outbound("hooks.internal, 10.1.0.0/16,192.0.2.7, fd00::/8")
    assert allowed.allows("Hooks.Internal.", ip_address("127.0.0.1"))
    assert allowed.allows("x", ip_address("10.1.2.3"))
    assert allowed.allows("x", ip_address("fd00::5"))
    assert allowed.allows("x", ip_address("192.0.2.7"))
    assert not allowed.allows("x", ip_address("10.2.0.1"))
    assert not allowed.allows("internal", ip_address("127.0.0.1"))


@pytest.mark.parametrize("text", ["http://a/", "10.0.0.0/99", "a b", "-x"])
def test_what_is_neither_a_host_nor_a_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host names"):
        parse_outbound(text)
