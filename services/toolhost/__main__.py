"""`python -m services.toolhost`: one tool host process."""

from libs.chassis.run import start
from services.toolhost.app import serve
from services.toolhost.settings import ToolhostSettings

start("toolhost", ToolhostSettings, serve)
