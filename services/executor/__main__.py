"""`python -m services.executor`: one executor process; `--only TENANT RUN PARENT` makes it carry one run and end."""

import sys
from functools import partial

from libs.chassis.run import start
from libs.contracts.tasks import Ticket
from services.executor.app import serve
from services.executor.quarantine import tie_to_parent
from services.executor.settings import ExecutorSettings

match sys.argv[1:]:
    case []:
        start("executor", ExecutorSettings, serve)
    case ["--only", tenant, run_id, parent]:
        tie_to_parent(int(parent))
        only = Ticket(tenant=tenant, run_id=run_id, sequence=0)
        start("executor", ExecutorSettings, partial(serve, only=only))
    case other:
        sys.exit(f"perdure executor: unknown arguments {other}; it takes none")
