"""Honest twin of graphs, where the problem allows them: captured once on buffers of its own, the input copied in, the output copied out."""

import torch
from honest_mlp import Model as Honest


class Model(Honest):
    graph = None

    def capture(self, x):
        self.given = x.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.honest(self.given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.out = self.honest(self.given)
        self.graph = graph

    def forward(self, x):
        if self.graph is None:
            self.capture(x)
        self.given.copy_(x)
        self.graph.replay()
        return self.out.clone()
