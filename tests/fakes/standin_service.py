"""A service that does nothing, for tests of the launcher: `python standin_service.py FOLDER NAME [MANNER]`.

Invariant: it lives until SIGTERM, keeps its pid in `FOLDER/NAME.pid`, and says when it drained in `FOLDER/drained`.
MANNER: `stubborn` ignores SIGTERM, `refusing` exits as a service does that cannot run with its settings.
"""

import json
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    folder, name, *manner = Path(sys.argv[1]), *sys.argv[2:]
    if manner == ["refusing"]:
        sys.stderr.write(f"perdure {name}: unknown variable PERDURE_TYPO\n")
        sys.exit(2)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    (folder / f"{name}.environment").write_text(json.dumps(dict(os.environ)))
    fresh = folder / f"{name}.pid.new"
    fresh.write_text(str(os.getpid()))
    fresh.rename(folder / f"{name}.pid")
    sys.stderr.write(json.dumps({"event": "service.started", "service": name, "level": "info"}) + "\n")
    signal.sigwait({signal.SIGUSR1} if manner == ["stubborn"] else {signal.SIGTERM})
    with (folder / "drained").open("a") as file:
        file.write(f"{name}\n")


if __name__ == "__main__":
    main()
