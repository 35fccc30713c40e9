"""Lines that are no document, each with what is said of it."""

BAD = {
    "not JSON": (b'{"text": oops}', r":\d+: not JSON, Expecting value: \{.text.: oops\}; correct the line"),
    "cut short": (b'{"text": "abc', r":\d+: not JSON, Unterminated .*\(is the line cut short\?\)"),
    "not an object": (b"[1]", r": a list, not an object; write"),
    "key missing": (
        b'{"body": "a", "id": 1}',
        r": no key 'text', it has body, id; pass the right (--)?json_key",
    ),
    "a number": (b'{"text": 123}', r": 'text' is a number, not a text"),
    "null": (b'{"text": null}', r": 'text' is null, not a text"),
    "a key twice": (b'{"text": "a", "text": "b"}', r": the key 'text' is given twice"),
    "NaN": (b'{"text": "a", "x": NaN}', r": NaN is not JSON"),
    "not UTF-8": (b'{"text": "\xff"}', r": not UTF-8 \(byte 11 of the line is 0xff\)"),
    "a lone surrogate": (rb'{"text": "\ud800"}', r": half a surrogate pair \(.ud800\); remove"),
    "nested too deep": (b"[" * 100_000, r": nested too deep"),
    "a lone CR": (b'{"text":\r "a"}', r": CR inside the line"),
}
# Values that are no object, and texts that are no text, each by the kind that it is.
RECORDS = {"7": "a number", "-1.5": "a number", '"我"': "a text", "null": "null", "true": "true or false"}
BAD.update({word: (word.encode(), f": {kind}, not an object; write") for word, kind in RECORDS.items()})
for value in (b"[]", b"true", b"{}"):
    BAD[f"the text {value}"] = (b'{"text": %s}' % value, ": 'text' is .*, not a text; put it in quotes$")
