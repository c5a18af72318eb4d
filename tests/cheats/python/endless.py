"""Never returns from the third call. Caught: the parent's deadline."""

from honest_mlp import Model as Honest


class Model(Honest):
    calls = 0

    def forward(self, x):
        self.calls += 1
        while self.calls == 3:
            pass
        return self.honest(x)
