"""Matches a regular expression against a whole text, in a process that can be killed.

Run as `python -I -S patterns.py`, standard library only: a backtracking pattern can take for ever and holds the
interpreter while it does. Invariant: the host waits at most `PATIENCE_S` for an answer and then knows that there is none.
"""

import asyncio
import re
import sys

# A sane pattern needs milliseconds even on the largest text.
PATIENCE_S = 2.0
# Checks look for a phrase; texts beyond this are data.
TEXT_BYTES_MAX = 4 << 20


async def is_found(pattern: str, text: str) -> bool | str:
    """Whether the pattern occurs (`^` and `$` are about lines), or why that cannot be said."""
    data = text.encode("utf-8", "surrogateescape")[:TEXT_BYTES_MAX]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", __file__, pattern.encode("utf-8", "surrogatepass").hex()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer, _ = await process.communicate(data)
    except TimeoutError:
        return f"the pattern {pattern!r} takes too long to match; write a simpler one"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = answer.decode("utf-8", "replace")
    if said in ("yes", "no"):
        return said == "yes"
    return f"the pattern {pattern!r} is not a regular expression: {said}"


def main() -> None:
    """The worker: the pattern in hex is the argument, the text the input."""
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        found = re.search(bytes.fromhex(sys.argv[1]).decode("utf-8", "replace"), text, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        sys.stdout.write(str(error))
        return
    sys.stdout.write("yes" if found else "no")


if __name__ == "__main__":
    main()
