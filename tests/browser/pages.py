"""A page in the browser: how it is shown, and what is seen of it."""

import base64
import os
from pathlib import Path

from selenium import webdriver


def show(browser: webdriver.Chrome, page: Path, scheme: str = "light", width: int = 1200) -> None:
    """In a colour scheme, with its details folded."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())


def unfold(browser: webdriver.Chrome) -> None:
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")


def screenshot(browser: webdriver.Chrome, name: str, width: int = 1200) -> bytes:
    """A PNG, which is kept where somebody wants to look."""
    height = browser.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    image = base64.b64decode(shot["data"])
    if keep := os.environ.get("CONVOY_SCREENSHOTS"):
        Path(keep).mkdir(parents=True, exist_ok=True)
        (Path(keep) / f"{name}.png").write_bytes(image)
    return image


def luminances(browser: webdriver.Chrome, selector: str, name: str) -> list[float]:
    """Of the colours of all that the selector finds: 0 black, 1 white."""
    script = "return [...document.querySelectorAll(arguments[0])].map(e => getComputedStyle(e)[arguments[1]])"
    colours = browser.execute_script(script, selector, name)
    assert colours, selector
    channels = [[float(x) / 255 for x in c.removeprefix("rgb(").removesuffix(")").split(",")] for c in colours]
    return [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in channels]


def check_contrast(browser: webdriver.Chrome, page: str, scheme: str, *texts: str) -> None:
    """Text is well apart from the page's background, which is bright in the light scheme and dark in the other."""
    (background,) = luminances(browser, page, "backgroundColor")
    assert (background > 0.9) if scheme == "light" else (background < 0.1)
    for selector in texts:
        assert all(abs(ink - background) > 0.3 for ink in luminances(browser, selector, "color")), selector
