"""What is odd about raw text: duplicates, damaged characters, scripts, languages."""
