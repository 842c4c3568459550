"""Where the `shoal` command begins: Ctrl-C ends it quietly while the rest is still loaded."""

import sys

from shoalctl.exit_codes import EXIT_INTERRUPTED


def main() -> None:
    """Runs the command and exits with its code."""
    try:
        from shoalctl.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
