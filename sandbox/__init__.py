"""The judge: records, problems, isolation, compile, check, time, count, and the stage runtime. Knows nothing of agents."""
