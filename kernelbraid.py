"""The one module kernelbraid owns in site-packages: it puts the application's own packages on the path and starts the CLI.

In a checkout the plain names (orchestrator, agents, memory, sandbox) stand beside this file; a wheel holds them in
kernelbraid_app/, so that they never collide with other distributions that use such names.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Console entry point."""
    here = Path(__file__).resolve().parent
    home = here / "kernelbraid_app" if (here / "kernelbraid_app").is_dir() else here
    sys.path.insert(0, str(home))
    from orchestrator.cli import app

    app()


if __name__ == "__main__":
    main()
