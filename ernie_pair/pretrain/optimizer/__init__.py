"""How the static program moves its parameters: AdamW or LAMB, sharded, as one op."""
