"""
A headless Chromium, from Debian's packages chromium and chromium-driver, driven by Selenium; or what is missing for it.

The page runs as its users see it: its content security policy is enforced, and any error that it logs fails a test.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JSON = dict[str, Any]
PROGRAMS = ("chromium", "chromedriver")
MISSING = "needs {}; on Debian and Ubuntu: apt-get install chromium chromium-driver; then make test-browser"


def missing() -> str:
    """What a test in the browser needs and this machine lacks, in one line; empty if nothing is missing."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if importlib.util.find_spec("selenium") is None:
        lacking.append("selenium")
    return MISSING.format(" and ".join(lacking)) if lacking else ""


class Browser:
    """One tab."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def open(self, address: str) -> None:
        """Load the page again."""
        self._driver.get("about:blank")  # otherwise a new #fragment would not load it
        self._driver.get(address)

    def size(self, width: int, height: int, *, scale: float = 1) -> None:
        """The size of the window's content."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefers(self, **features: str) -> None:
        """Set preferences of the user, such as `color_scheme="dark"`."""
        named = [{"name": f"prefers-{key.replace('_', '-')}", "value": value} for key, value in features.items()]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self._driver.execute_script(script, *arguments)

    def keys(self, *keys: str) -> None:
        """Press keys, one after another, in the focused element."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self._driver).send_keys(getattr(Keys, key) if len(key) > 1 else key).perform()

    def text(self, selector: str) -> str:
        """The visible text of the first element; empty if there is none."""
        found = self._driver.find_elements("css selector", selector)
        return str(found[0].text) if found else ""

    def count(self, selector: str) -> int:
        """How many elements match."""
        return len(self._driver.find_elements("css selector", selector))

    def click(self, selector: str) -> None:
        """Click on the first element."""
        self._driver.find_element("css selector", selector).click()

    def shot(self, file: Path) -> None:
        """A picture of the window's content as PNG."""
        self._driver.save_screenshot(str(file))

    def errors(self) -> list[str]:
        """What the page has logged since the last call: failed requests, broken policies, exceptions."""
        return [str(entry["message"]) for entry in self._driver.get_log("browser")]


def _options() -> Any:
    from selenium import webdriver

    made = webdriver.ChromeOptions()
    made.binary_location = str(shutil.which("chromium"))
    flags: Sequence[str] = (
        "--headless=new",
        "--no-sandbox",  # containers of a CI lack the rights for it, and only our own page is opened
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-proxy-server",
        "--lang=en-GB",
        "--force-prefers-reduced-motion",
    )
    for flag in flags:
        made.add_argument(flag)
    made.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return made


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with one tab."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    service = Service(str(shutil.which("chromedriver")), env={**os.environ, "LANG": "C.UTF-8", "TZ": "UTC"})
    driver = webdriver.Chrome(options=_options(), service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
