"""The command line by itself: what it imports, and what its help shows. Campaigns: test_campaign.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_importing_the_command_line_is_light(repo: Path) -> None:
    """No work and no heavy library on import."""
    code = "import sys; import orchestrator.cli; print(sorted(m for m in ('torch', 'numpy') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=repo, timeout=60)
    assert done.stdout.strip() == "[]"


def test_every_verb_has_help(repo: Path) -> None:
    for verb in ("run", "report", "doctor", "problems", "memory", "skills"):
        done = subprocess.run([sys.executable, "kernelbraid.py", verb, "--help"], capture_output=True, text=True, cwd=repo, timeout=60)
        assert done.returncode == 0 and "Usage" in done.stdout, verb


def test_the_newest_run_folder_is_reported_or_asked_for(repo: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "kernelbraid.py", "report", "--runs", str(tmp_path)], capture_output=True, text=True, cwd=repo, timeout=60
    )
    assert done.returncode == 2 and "no run folder" in done.stderr and "Traceback" not in done.stderr
