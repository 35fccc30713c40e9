"""How the static program updates its parameters: AdamW or LAMB, sharded, as one op."""
