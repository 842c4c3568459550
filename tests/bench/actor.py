"""What a device's loop costs.

    python tests/bench/actor.py --envs 8 --repeats 7 -o json

What each precision of a policy costs is measured wherever Shoal is installed: `shoal bench actor`
with --policy, --state or --config.
README.md, beside this file, says how to read the results.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    from bench import actor_loop

    if {"-h", "--help"} & set(arguments):
        from shoalctl.measurement import precisions

        with contextlib.suppress(SystemExit):
            actor_loop.main(["--help"])
        sys.stdout.write("\nWith --policy, --state or --config: what each precision costs:\n\n")
        precisions.main(["--help"])
    return actor_loop.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
