"""Chromium without a window, to look at pages as a person does; skips where it is not installed.

`apt-get install chromium chromium-driver` brings it. With PICTURES=FOLDER the tests that look at a page write
the pictures of the README there.
"""

import json
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest

PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--lang=en"),
)
PICTURES = os.environ.get("PICTURES", "")
DESKTOP, PHONE = (1280, 800), (390, 844)

# Texts that are hard to read: less contrast than WCAG 2.1 AA asks for, 4.5, or 3 for large ones.
PALE = """
const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => {
  v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; };
const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length && (c.length < 4 || c[3] > 0)) return c; }
  return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const e = node.parentElement, style = getComputedStyle(e);
  if (!node.data.trim() || !e.checkVisibility() || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
  const [a, b] = [light(parse(style.color)), light(back(e))].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && +style.fontWeight >= 700);
  const ratio = (a + .05) / (b + .05);
  if (ratio < (large ? 3 : 4.5)) found.push(`${node.data.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return found;
"""
# Legends that lie on the axes of their chart, whose pictures are SVG.
COVERED = """
const found = [];
for (const image of document.images) {
  if (!image.src.startsWith("data:image/svg")) continue;
  const box = document.createElement("div");
  box.innerHTML = decodeURIComponent(escape(atob(image.src.split(",")[1])));
  document.body.append(box);
  const legend = box.querySelector('[id^="legend_"]');
  const panels = [...box.querySelectorAll('[id^="axes_"] > [id^="patch_"]:first-of-type')];
  const over = (a, b) => Math.max(a.left, b.left) < Math.min(a.right, b.right) - 1 &&
    Math.max(a.top, b.top) < Math.min(a.bottom, b.bottom) - 1;
  if (legend && panels.some((panel) => over(legend.getBoundingClientRect(), panel.getBoundingClientRect())))
    found.push(image.alt);
  box.remove();
}
return found;
"""


class Look(NamedTuple):
    size: tuple = DESKTOP
    theme: str = "light"


LOOKS = [Look(size, theme) for size in (DESKTOP, PHONE) for theme in ("light", "dark")]


def start_chromium():
    """Return a driver of Chromium; skips the test where Chromium or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not all(PROGRAMS):
        pytest.skip("no chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(PROGRAMS[1])
    return webdriver.Chrome(options=options, service=service)


class Browser:
    """Pages in Chromium, each opened as a `Look` says."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, address, look=Look()):  # noqa: B008 - a value that nobody changes
        """Open an address, or a file, and forget what the one before it said and asked for."""
        width, height = look.size
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        theme = [{"name": "prefers-color-scheme", "value": look.theme}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, seconds=30):
        """Wait until a script in the page returns something true, and return it."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"waited in vain for {script}; page: {self.text()[:300]}"
            time.sleep(0.1)
        return self.run(script)

    def text(self):
        return self.run("return document.body.innerText")

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def asked(self):
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "file:", "about:", "blob:"))]

    def overflow(self):
        return self.run("return document.documentElement.scrollWidth - innerWidth")

    def pale_texts(self):
        return self.run(PALE)

    def covering_legends(self):
        return self.run(COVERED)

    def picture(self, name, height=None):
        """Write a picture of the README, where PICTURES names a folder."""
        if not PICTURES:
            return
        if height:
            size = {"width": DESKTOP[0], "height": height, "deviceScaleFactor": 1, "mobile": False}
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            time.sleep(1)
        save_picture(self.driver.get_screenshot_as_png(), Path(PICTURES) / f"{name}.png")


def save_picture(content, path):
    """Write a PNG with few colours, which is small."""
    import io

    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
