"""A character of the same sound in place of another, as input methods by pinyin put it there."""

from functools import lru_cache
from typing import Dict, List, Optional, Sequence, Tuple

from data_tools.base.optional_import import import_optional
from ernie_pair.pair.robustness.change import Change, Facts, Untouched, draw_weighted
from ernie_pair.pair.robustness.words import NEGATING, is_hanzi, words_of

LEAST_COUNT = 2  # of a character in the file: what stands there once is no common one


def make_homophone(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with a character of one text replaced by a homophone, its label unchanged.

    The sound is that of the character in its word, tones aside (pypinyin); the other is drawn from the
    characters of the file by how often they stand there. None where no character has one. Raises InputError
    without pypinyin.
    """
    by_sound = _by_sound(tuple(facts.characters.items()))

    def rewrite(text: str) -> Optional[str]:
        choices = _choices(text, by_sound)
        if not choices:
            return None
        place, others = choices[int(pair.rng.integers(len(choices)))]
        return text[:place] + draw_weighted(pair.rng, others) + text[place + 1 :]

    return pair.on_a_side(rewrite, pair.label, "homophone")


def _choices(text: str, by_sound) -> List[Tuple[int, List[Tuple[str, int]]]]:
    """Return the places of ``text`` that have homophones, and these with their counts."""
    found, begin = [], 0
    for word in words_of(text):
        sounds = _sounds(word.text) if is_hanzi(word.text) and not NEGATING.intersection(word.text) else []
        for offset, sound in enumerate(sounds):
            others = [entry for entry in by_sound.get(sound, ()) if entry[0] != word.text[offset]]
            if others:
                found.append((begin + offset, others))
        begin += len(word.text)
    return found


@lru_cache(maxsize=1 << 14)
def _sounds(word: str) -> Sequence[str]:
    """Return the pinyin of each character of a word, without tones; none where they do not fit."""
    found = import_optional("pypinyin", "robustness").lazy_pinyin(word)
    return found if len(found) == len(word) else []


@lru_cache(maxsize=1)
def _by_sound(characters: Tuple[Tuple[str, int], ...]) -> Dict[str, List[Tuple[str, int]]]:
    """Return {pinyin: common characters that sound so, with their counts}; none of them negates."""
    found: Dict[str, List[Tuple[str, int]]] = {}
    for character, count in sorted(characters):
        if count >= LEAST_COUNT and character not in NEGATING:
            for sound in _sounds(character):
                found.setdefault(sound, []).append((character, count))
    return found
