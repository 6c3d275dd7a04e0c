"""`python -m harness`, and the program `harness`."""

from __future__ import annotations

import gc

from harness import interrupts


def main() -> None:
    """Run the command line, whose modules take longer to load than a user needs to press Ctrl-C."""
    interrupts.exit_quietly()
    gc.disable()  # nothing that loads is garbage, and looking for it takes a fifth of the time
    from harness import cli

    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
