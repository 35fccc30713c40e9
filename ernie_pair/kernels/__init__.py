"""Fused CPU kernels: what one encoder layer costs in one call, beside the plain path of Paddle."""
