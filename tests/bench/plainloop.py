"""The other floor: an agent loop on the openai client with nothing durable, as one would write it first.

    python -m tests.bench.plainloop --url URL --runs 64 --iterations 20 [--at-once 1]      prints one line of JSON

Invariant: it does what a run of Perdure does towards the model (the same conversation, streamed, a tool call carried
out each turn) and nothing else; it is written the way the client's documentation shows it.
"""

import argparse
import asyncio
import json
import sys
import time

import msgspec
import uvloop
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.bench import work

ECHO: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Returns the given text unchanged.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The text to return."}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
}
INSTRUCTIONS = "You are an agent. Use the tools until the task is done, then answer."


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """When each run began (monotonic seconds), and the CPU that all of them took."""

    began_s: list[float]
    cpu_s: float


class Call(msgspec.Struct):
    """A tool call as it is put together from its pieces."""

    id: str = ""
    name: str = ""
    arguments: str = ""


async def run(client: AsyncOpenAI, iterations: int, began_s: list[float]) -> None:
    """One run: ask, carry out, ask again, until the model calls nothing more."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": work.goal(iterations)},
    ]
    began_s.append(time.monotonic())
    while True:
        text, calls = await turn(client, messages)
        if not calls:
            return
        messages.append(
            {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in calls
                ],
            }
        )
        for call in calls:
            output = str(json.loads(call.arguments)["text"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


async def turn(client: AsyncOpenAI, messages: list[ChatCompletionMessageParam]) -> tuple[str, list[Call]]:
    """One model call, accumulated from its stream. Call ids are made unique, as a client must."""
    stream = await client.chat.completions.create(
        model="scripted", messages=messages, tools=[ECHO], stream=True, stream_options={"include_usage": True}
    )
    text, calls = "", dict[int, Call]()
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, Call())
                if piece.id:
                    call.id = f"{piece.id}_{len(messages)}"
                if piece.function is not None:
                    call.name += piece.function.name or ""
                    call.arguments += piece.function.arguments or ""
    return text, list(calls.values())


async def measure(url: str, runs: int, iterations: int, *, at_once: int) -> Report:
    """All runs, `at_once` of them under way at any time."""
    began_s: list[float] = []
    free = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with free:
            await run(client, iterations, began_s)

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        # The client makes its connection and its lazy imports at the first call; neither belongs to an iteration.
        for _ in range(work.WARM_UPS):
            await run(client, 0, [])
        before_s = time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(runs):
                group.create_task(one())
        return Report(began_s=began_s, cpu_s=time.process_time() - before_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="An undurable agent loop, to compare with.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=None)
    options = parser.parse_args()
    at_once: int = options.at_once or options.runs
    measured = measure(options.url, options.runs, options.iterations, at_once=at_once)
    sys.stdout.write(msgspec.json.encode(uvloop.run(measured)).decode() + "\n")


if __name__ == "__main__":
    main()
