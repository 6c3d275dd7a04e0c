"""`python -m harness`, and the program `harness`."""

from __future__ import annotations

from harness import interrupts


def main() -> None:
    """Run the command line, whose modules take longer to load than a user needs to press Ctrl-C."""
    interrupts.exit_quietly()
    from harness import cli

    cli.main()


if __name__ == "__main__":
    main()
