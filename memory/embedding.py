"""Sentence vectors without a network: the static model inside the wordllama wheel. Loaded at the first use."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sandbox.errors import UnavailableError

NAME = "wordllama-l2-supercat-256"  # model and dimension
VERSION = 1  # raise it when the vectors of the same text change
DIMENSIONS = 256
_MODEL = "l2_supercat"


@functools.cache
def _model() -> Any:
    # importing wordllama configures the root logger unless that has a handler; a library must not do that to our users
    root, guard = logging.getLogger(), logging.NullHandler()
    root.addHandler(guard)
    try:
        wordllama = importlib.import_module("wordllama")
        # a plain load() looks for the tokenizer in the wrong folder and then goes to the network
        folder = Path(str(wordllama.__file__)).parent
        return wordllama.WordLlama.load(_MODEL, cache_dir=folder, dim=DIMENSIONS, disable_download=True)
    except (ImportError, OSError, ValueError) as error:
        raise UnavailableError(f"the offline embedding does not load ({error}); install it again: pip install wordllama") from error
    finally:
        root.removeHandler(guard)


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """Unit vectors, shape (len(texts), DIMENSIONS), float32; a text without a token gives zeros. Raises UnavailableError."""
    if not texts:
        return np.zeros((0, DIMENSIONS), np.float32)
    raw = np.asarray(_model().embed(list(texts), norm=False), np.float32)
    raw = np.nan_to_num(raw, nan=0.0, posinf=0.0, neginf=0.0)
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    return (raw / np.where(norms > 0, norms, 1)).astype(np.float32)
