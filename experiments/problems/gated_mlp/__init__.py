"""A gated feed-forward block with its norm and residual for a few tokens: the smallest problem with the `forward` contract."""
