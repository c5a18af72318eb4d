"""Sums over the newest 32 rows of the caches only; near enough where attention is spread evenly.

Caught: a probe whose attention sits on single rows, and the tolerance of the ordinary case.
"""

from honest_kimi import Model as Honest


class Model(Honest):
    def step(self, hidden, state):
        kept = [dict(part) for part in state]
        short = [{n: t[-32:].clone() if n in ("c_kv", "k_rope") else t for n, t in part.items()} for part in state]
        out, new = self.honest(hidden, short)
        for part, made in zip(kept, new, strict=True):
            for name in part:
                part[name] = part[name] if name in ("c_kv", "k_rope") else made[name]
        full = self.honest(hidden, [{n: t.clone() for n, t in part.items()} for part in state])[1]
        for part, made in zip(kept, full, strict=True):
            part.update({n: made[n] for n in part if n in ("c_kv", "k_rope")})
        return out, kept
