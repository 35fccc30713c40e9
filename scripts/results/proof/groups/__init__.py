"""The experiments, a file for each group: its title, and a function of a Scale that returns its runs."""

from proof.groups import forgetting, options, peer, pretraining, published, scratch, starts, task

# In the order of the page.
GROUPS = {
    "pretraining": pretraining,
    "task": task,
    "starts": starts,
    "scratch": scratch,
    "options": options,
    "peer": peer,
    "published": published,
    "forgetting": forgetting,
}
