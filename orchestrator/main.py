#!/usr/bin/env python3
"""Executable launcher: `python orchestrator/main.py [options]` is `kernelbraid run [options]`. Nothing is defined here."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

if __name__ == "__main__":
    from orchestrator.cli import run_main

    run_main()
