"""`python -m services.gateway`."""

from libs.chassis.run import start
from services.gateway.app import serve
from services.gateway.settings import GatewaySettings

if __name__ == "__main__":
    start("gateway", GatewaySettings, serve)
