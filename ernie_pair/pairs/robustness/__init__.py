"""Labelled pairs changed as people write: typos, homophones, negation, entities, order, fillers."""
