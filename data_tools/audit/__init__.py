"""What is odd about raw text: duplicates, near duplicates, odd characters, encodings."""
