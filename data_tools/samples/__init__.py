"""From a corpus to masked samples: the sample map, segments, masking flags, batches."""
