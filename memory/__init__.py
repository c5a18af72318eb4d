"""What was proven: tricks, with the evaluations that prove them."""
