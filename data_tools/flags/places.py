"""Tell by its name whether an option takes a file or a folder; for --help and shell completion."""

_ENDINGS = {"_file": "FILE", "_dir": "FOLDER", "_path": "PATH", "_prefix": "PREFIX", "_lexicon": "FILE"}
_PLACES = {
    **dict.fromkeys(("report", "index"), "FOLDER"),
    **dict.fromkeys(("config", "train_config", "calibrate_on", "tune_on", "file"), "FILE"),
    **dict.fromkeys(("output", "input", "prefix", "model", "teacher", "reranker"), "PATH"),
    **dict.fromkeys(("model_name_or_path", "embedding_model", "add_twins_to", "domain_data"), "PATH"),
    **dict.fromkeys(("checkpoint", "checkpoints", "first", "second"), "PATH"),
}


def place_word(name: str) -> str:
    """Return the placeholder of option ``name``: FILE, FOLDER, PATH or PREFIX; '' if it takes no path."""
    ending = next((word for end, word in _ENDINGS.items() if name.endswith(end)), "")
    return _PLACES.get(name, ending)
