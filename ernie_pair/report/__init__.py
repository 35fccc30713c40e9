"""What the reports of all targets are made of: charts and pages."""
