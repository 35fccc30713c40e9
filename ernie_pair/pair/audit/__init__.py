"""What is wrong with labelled pairs before anything is trained on them."""
