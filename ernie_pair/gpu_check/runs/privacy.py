"""Remove from a text whatever identifies the machine: folders, the user, the host, addresses."""

import getpass
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Dict

FOLDER, SHORTEST_NAME = "<folder>", 3  # characters: a shorter one is part of ordinary words
# A path whose last part, a file name, may stay: below a known folder that was replaced, or
# absolute and of two or more parts.
_PART = r"[^\s/:;,'\"()\[\]]"
_BELOW = re.compile(rf"{FOLDER}(?:/{_PART}+)*/({_PART}*)")
_PATH = re.compile(rf"(?<![\w.>/])~?(?:/{_PART}+)+/({_PART}*)")
# Of a network or an email; ==11.11.3.6 is a version.
_ADDRESS = re.compile(r"(?<!==)\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?|\b[\w.+-]+@[\w-]+\.[\w.]+")


def hide_private(text: str) -> str:
    """Return ``text`` without names of folders, of the user and of the host, and without addresses."""
    for words, shown in private_words().items():
        text = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", shown, text)
    for path in (_BELOW, _PATH):
        text = path.sub(r".../\1", text)
    return _ADDRESS.sub("<address>", text)


def private_words() -> Dict[str, str]:
    """Return {private text: its replacement}, the longest first."""
    places = {str(Path.home()), os.getcwd(), sys.prefix, tempfile.gettempdir()}
    places.add(str(Path(__file__).resolve().parents[3]))
    host = socket.gethostname()
    names = {host: "<host>", host.partition(".")[0]: "<host>", _user(): "<user>"}
    found = {place: FOLDER for place in places if len(place) > 1}
    found.update({name: shown for name, shown in names.items() if len(name) >= SHORTEST_NAME})
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without one
        return ""
