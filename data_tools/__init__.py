"""Raw text to token ids to masked samples: files and arrays, no deep-learning framework."""

from data_tools.known_warnings import ignore_known_warnings

ignore_known_warnings()  # of jieba, Paddle and others, before their import; ernie_pair imports this first
