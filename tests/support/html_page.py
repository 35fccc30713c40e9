"""A page as a browser reads it."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a browser would run, load or follow."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        is_picture = tag == "img" and dict(attributes).get("src", "").startswith("data:image/")
        if (tag in ("img", "iframe", "object", "embed") and not is_picture) or tag == "script":
            self.found.append(tag)
        self.found += [name for name, _ in attributes if name.startswith("on")]
        links = [value for name, value in attributes if name == "href" and not value.startswith("#")]
        self.found += [link for link in links if link != "data:,"]  # the empty icon
