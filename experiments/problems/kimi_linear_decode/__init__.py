"""One decode step of a Kimi-Linear style W4A16 block stack, batch 1: the torch side of the problem."""
