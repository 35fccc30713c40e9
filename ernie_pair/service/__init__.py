"""The service: exported models and indexes over HTTP."""
