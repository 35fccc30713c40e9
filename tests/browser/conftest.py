import pytest
from browser import Browser, start_chromium


@pytest.fixture(scope="session")
def browser():
    driver = start_chromium()
    yield Browser(driver)
    driver.quit()
