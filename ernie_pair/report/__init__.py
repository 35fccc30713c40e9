"""The building blocks of all reports: charts, pages, and counts of probabilities."""
