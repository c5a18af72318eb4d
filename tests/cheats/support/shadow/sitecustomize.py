"""Would run at the start of an interpreter that has this folder on its path."""

SHADOW = True
