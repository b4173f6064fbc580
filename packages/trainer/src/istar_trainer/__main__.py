"""``python -m istar_trainer`` is the command ``istar``, for launchers that start modules."""

import sys

from istar_trainer.cli import main

if __name__ == "__main__":
    # the deepspeed launcher puts --local_rank=N first; the environment says the same
    main([word for word in sys.argv[1:] if not word.startswith("--local_rank=")])
