"""Raw text to token ids to masked samples: files and arrays, no deep-learning framework."""

import ernie_pair.core  # noqa: F401  (its filters of warnings, before other libraries)
