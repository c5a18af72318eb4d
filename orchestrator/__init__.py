"""Who runs where: the command line, the run folder, the main job."""
