"""Raw text: reading files and lines, cutting sentences, words and word pieces."""
