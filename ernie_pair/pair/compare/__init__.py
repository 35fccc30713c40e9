"""Compare classifiers that start from different weights."""
