"""The proof of use as data: experiments, what runs the missing ones, and the page of them."""
