"""An exported model behind HTTP, with a page to try it."""
