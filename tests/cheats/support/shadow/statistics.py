"""Shadows the standard module of this name for shadow_modules.py: every time is nothing."""

SHADOW = True


def median(values):
    return 1e-9


mean = fmean = median
