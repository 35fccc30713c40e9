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
from places import SUPPORT

PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
ARGUMENTS = """
    headless=new no-sandbox disable-gpu hide-scrollbars disable-dev-shm-usage disable-background-networking
    disable-component-update no-first-run lang=en
""".split()
PICTURES = os.environ.get("PICTURES", "")
CHECKS = (SUPPORT / "page_checks.js").read_text(encoding="utf-8")
DESKTOP, PHONE = (1280, 800), (390, 844)


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
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))


class Browser:
    """Pages in Chromium, each opened as a `Look` says."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, address, look=Look()):  # noqa: B008 - a value that nobody changes
        """Open an address, or a file, and forget what the one before it said and asked for."""
        theme = [{"name": "prefers-color-scheme", "value": look.theme}]
        self.resize(*look.size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)

    def resize(self, width, height):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

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
        return self.run(f"{CHECKS} return paleTexts()")

    def covering_legends(self):
        return self.run(f"{CHECKS} return coveringLegends()")

    def picture(self, name, height=None):
        """Write a picture of the README, where PICTURES names a folder."""
        if not PICTURES:
            return
        if height:
            self.resize(DESKTOP[0], height)
            time.sleep(1)
        save_picture(self.driver.get_screenshot_as_png(), Path(PICTURES) / f"{name}.png")


def save_picture(content, path):
    import io

    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
