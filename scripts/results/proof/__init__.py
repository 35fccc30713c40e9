"""The proof of use as data: experiments, the runner of the missing ones, and their page."""
