"""The HTTP and SSE client of Perdure; it knows the contracts and nothing else.

async with PerdureClient(url, token) as client:
    created = await client.create_task(TaskCreate(goal="Make the test pass.", auto_start=True))
    async for event in client.stream(created.run_id): ...
"""

from libs.client.client import PerdureClient
from libs.client.problems import GatewayUnreachable

__all__ = ["GatewayUnreachable", "PerdureClient"]
