"""Logs of a server as JSON lines."""

import json
import logging
import time
from typing import Any


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object: time, level, event, and the facts that came with it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record.

        Args:
            record: Its ``facts``, if it has any, become members of the object.
        """
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
