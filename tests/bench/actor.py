"""What a device's loop costs, and with `--policy` or `--state` what each precision costs it.

    python tests/bench/actor.py --envs 8 --repeats 7 -o json
    python tests/bench/actor.py --policy policy.onnx --envs 8
    python tests/bench/actor.py --state /var/lib/shoal --env CartPole-v1

README.md, beside this file, says how to read the results.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

OF_A_POLICY = ("--policy", "--state")


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    if any(argument.partition("=")[0] in OF_A_POLICY for argument in arguments):
        from bench import precisions

        return precisions.main(arguments)
    from bench import actor_loop

    if {"-h", "--help"} & set(arguments):
        from bench import precisions

        with contextlib.suppress(SystemExit):
            actor_loop.main(["--help"])
        sys.stdout.write("\nWith --policy or --state it measures what each precision costs:\n\n")
        return precisions.main(["--help"])
    return actor_loop.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
