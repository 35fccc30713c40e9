"""N-grams as units: counted and scored over a corpus, kept as a lexicon, masked as one symbol."""
