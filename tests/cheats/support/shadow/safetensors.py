"""Shadows the package of this name for shadow_modules.py."""

SHADOW = True
