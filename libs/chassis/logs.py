"""Logs: a constant event name plus fields, one JSON line or a readable line on a terminal.

Invariant: no line holds a secret: whoever logs passes facts, not objects, and what an error quotes is redacted.
"""

import json
import logging
import sys
from collections.abc import Mapping

from libs.policy.redaction import Redaction

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# A field longer than this is cut: a log line is for reading, the whole value is in the run's log.
FIELD_CHARS_MAX = 2000

Field = str | int | float | bool | None


class Logger:
    """A named logger; `bind` gives one that adds fields to every line."""

    def __init__(self, name: str, fields: Mapping[str, Field] | None = None) -> None:
        self._name, self._fields = name, dict(fields or {})
        self._log = logging.getLogger(f"perdure.{name}")

    def bind(self, **fields: Field) -> "Logger":
        return Logger(self._name, {**self._fields, **fields})

    def debug(self, event: str, **fields: Field) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Field) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Field) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Field) -> None:
        """Like `error`, with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, exc_info=True)

    def _write(self, level: int, event: str, fields: Mapping[str, Field], *, exc_info: bool = False) -> None:
        if self._log.isEnabledFor(level):
            merged = {key: _clipped(value) for key, value in {**self._fields, **fields}.items()}
            self._log.log(level, event, extra={"fields": merged}, exc_info=exc_info)


def get_logger(name: str) -> Logger:
    return Logger(name)


def configure(
    *, service: str, replica: str, as_json: bool, level: str = "info", redaction: Redaction | None = None
) -> None:
    """Send every log line of this process to stderr in the chosen form, without its secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        Redacted(_JsonLine(service, replica) if as_json else _ReadableLine(service), redaction or Redaction())
    )
    logging.basicConfig(level=_LEVELS.get(level, logging.INFO), handlers=[handler], force=True)
    for chatty in ("httpx", "httpx2", "httpcore", "openai", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _clipped(value: Field) -> Field:
    return value[:FIELD_CHARS_MAX] + "…" if isinstance(value, str) and len(value) > FIELD_CHARS_MAX else value


def _fields_of(record: logging.LogRecord) -> dict[str, Field]:
    return getattr(record, "fields", {})


class Redacted(logging.Formatter):
    """Lines of a form without secrets, whoever wrote them."""

    def __init__(self, form: logging.Formatter, redaction: Redaction) -> None:
        super().__init__()
        self._form, self._redaction = form, redaction

    def format(self, record: logging.LogRecord) -> str:
        return self._redaction.text(self._form.format(record))


class _JsonLine(logging.Formatter):
    def __init__(self, service: str, replica: str) -> None:
        super().__init__()
        self._base = {"service": service, "replica": replica}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Field] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._base,
            **_fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _ReadableLine(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _fields_of(record).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {self._service:9} "
        line += f"{record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
