"""Shadows a problem's contract for shadow_modules.py."""

SHADOW = True
