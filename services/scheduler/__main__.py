"""`python -m services.scheduler`."""

from libs.chassis.run import start
from services.scheduler.app import serve
from services.scheduler.settings import SchedulerSettings

if __name__ == "__main__":
    start("scheduler", SchedulerSettings, serve)
