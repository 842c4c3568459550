"""`python3 -I DIRECTORY`: the launcher, from a copy of this directory or from the package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

sys.dont_write_bytecode = True  # what runs beside a bundle's digests leaves nothing there

if not __package__:
    # A copy is a directory of any name: give it the one that its modules know each other by.
    here = Path(__file__).parent
    spec = importlib.util.spec_from_file_location(
        "edge_agent.slots", here / "__init__.py", submodule_search_locations=[str(here)]
    )
    if spec is None or spec.loader is None:
        sys.exit(f"{here} holds no launcher: install it again")
    above = ModuleType("edge_agent")
    above.__path__ = []
    package = importlib.util.module_from_spec(spec)
    sys.modules.update({"edge_agent": above, "edge_agent.slots": package})
    spec.loader.exec_module(package)

from edge_agent.slots.cli import main  # noqa: E402 its package has a name from here on

sys.exit(main())
