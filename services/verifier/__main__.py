"""`python -m services.verifier`: one verifier process."""

from libs.chassis.run import start
from services.verifier.app import serve
from services.verifier.settings import VerifierSettings

start("verifier", VerifierSettings, serve)
