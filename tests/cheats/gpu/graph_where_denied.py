"""H38: a decode step as a graph of many kernels, where the rules ask for one launch and deny graphs.

Right in every value. Caught: what a graph launches is counted, and launches are above what the problem allows.
"""

import torch
from honest_kimi import Model as Honest


class Model(Honest):
    graph = None

    def step(self, hidden, state):
        out, new = self.honest(hidden, state)
        if self.graph is None:
            self.room = torch.empty_like(out)
            self.given = out.clone()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.room.copy_(self.given * 1)
            self.graph = graph
        self.given.copy_(out)
        self.graph.replay()
        return self.room.clone(), new
