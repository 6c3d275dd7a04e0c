"""`python -m harness`, and the program `harness`."""

from __future__ import annotations

import gc

from harness import interrupts


def main() -> None:
    """Run the command line.

    Signals are handled first: the modules take long enough to load for a user to press Ctrl-C.
    """
    interrupts.exit_quietly()
    gc.disable()  # loading creates no garbage, and looking for it takes a fifth of the time
    from harness import cli

    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
