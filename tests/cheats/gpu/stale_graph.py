"""H38: captures a graph on the memory of the first input and replays it for all others: right as long as the pointer stays.

Caught: every input lies elsewhere.
"""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    graph = None

    def forward(self, x):
        if self.graph is None:
            self.first = x
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.honest(x)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.out = self.honest(x)
            self.graph = graph
        self.graph.replay()
        return self.out
