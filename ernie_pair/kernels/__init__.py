"""Fused CPU kernels: one call per encoder layer, as an alternative to the plain path of Paddle."""
