"""Frozen records and their canonical hashes: the ground every other record stands on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record that is validated at the door, cannot change afterwards and knows no extra keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


def canonical_json(value: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, no NaN. Records are dumped in JSON mode first."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a record or JSON value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
