"""Peers that speak the real protocol, scripted."""
