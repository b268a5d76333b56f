# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The site in a real browser, as a phone shows it. Skipped where playwright or a chromium is missing (pip install playwright)."""
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urldefrag

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOK = """() => ({
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    links: [...document.querySelectorAll('a[href]')].map(a => a.href), ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    missing: [...document.images].filter(i => i.loading != 'lazy' && !i.naturalWidth).map(i => i.src)})"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(folder, address) of a built site."""
    folder = tmp_path_factory.mktemp("site")
    environment = dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}",
                       TRITON_DIST_BACKEND="emulator")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", str(ROOT / "docs"), str(folder)], env=environment,
                   check=True, timeout=180)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_every_page_on_a_phone(site):
    """It loads without an error, is not wider than the screen, its pictures are there, and its links lead somewhere."""
    api = pytest.importorskip("playwright.sync_api")
    folder, address = site
    faults, links, ids = [], set(), {}
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("response", lambda answer: faults.append(f"{page.url}: {answer.url}") if answer.status >= 400 else None)
        pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
        for name in pages:
            page.goto(address + name)
            found = page.evaluate(LOOK)
            faults += [f"{name}: wider than the screen by {found['wide']}"] * (found["wide"] > 0)
            faults += [f"{name}: {source}" for source in found["missing"]]
            ids[address + name] = set(found["ids"])
            links |= {(name, link) for link in found["links"] if link.startswith(address)}
        for name, link in links:
            target, mark = urldefrag(link)
            target += "index.html" if target.endswith("/") else ""
            if not (folder / target[len(address):]).exists() or (mark and target in ids and mark not in ids[target]):
                faults.append(f"{name}: a link to {link}")
        page.goto(f"{address}search.html?q=ag_gemm")
        page.wait_for_selector("#search-results li")
        found = page.inner_text("#search-results")
        browser.close()
    assert not faults
    assert len(pages) > 40 and len(links) > 1000 and "triton_dist.ops.ag_gemm" in found
