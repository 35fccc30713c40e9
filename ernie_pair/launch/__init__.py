"""Start the processes of a run, of either half: by a file of answers, or by flags."""
