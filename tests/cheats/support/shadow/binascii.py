"""Shadows the standard module of this name for shadow_modules.py."""

SHADOW = True
