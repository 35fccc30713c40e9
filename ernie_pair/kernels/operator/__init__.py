"""The fused encoder layer as an operator of Paddle's static graph, compiled at first use."""
