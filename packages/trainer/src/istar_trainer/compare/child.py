"""One command of ``istar`` in a process that does not outlive the comparison that started it.

    python -m istar_trainer.compare.child COMMAND …

The parent holds the other end of standard input; when it ends, however it ends, so does this.
"""

import os
import sys
import threading

from istar_trainer import cli


def end_with_parent() -> None:
    """Wait for the end of standard input, which only the parent's death brings, and end at once."""
    while os.read(sys.stdin.fileno(), 1):
        continue
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    cli.main(sys.argv[1:])
