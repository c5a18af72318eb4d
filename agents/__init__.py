"""What to try next: planner and merger. Plain Python."""
