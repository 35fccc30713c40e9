"""The check of a GPU: kernels, losses, layouts, resume, models and speed."""
