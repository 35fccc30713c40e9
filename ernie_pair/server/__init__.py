"""Serve an exported model over HTTP, with a page to try it."""
