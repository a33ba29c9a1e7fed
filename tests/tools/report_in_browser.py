#!/usr/bin/env python3
"""Looks at a report of `tessera compare` in headless Chromium.

report_in_browser.py PAGE FOLDER, where PAGE is an .html file or a program that prints one. Fails on an error of the
page, a plot that is not drawn, text outside the page, or a request to the network; leaves pictures of the page in
FOLDER, light and dark, 1280 and 375 pixels wide. Exit code 77: there is no Chromium.
"""

import concurrent.futures
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PLOTS = ["memory", "step-time", "traffic", "communication", "pareto", "losses", "timeline"]
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
LOOKS = [(width, scheme) for width in (1280, 375) for scheme in ("light", "dark")]

# Appended to a copy of the page: writes what the browser has made of it into the document.
PROBE = """<script>
const plots = {};
for (const figure of document.querySelectorAll('figure')) {
  const svg = figure.querySelector('svg[role=img]');
  if (!svg) continue;
  const box = svg.getBBox(), place = svg.getBoundingClientRect();
  const outside = [...svg.querySelectorAll('text')].filter(t => {
    const r = t.getBoundingClientRect();
    return r.left < -1 || r.right > document.documentElement.clientWidth + 1;
  }).map(t => t.textContent);
  plots[figure.id] = {box: [box.width, box.height], place: [place.width, place.height],
    shapes: svg.querySelectorAll('rect,path,polyline').length, outside,
    table: figure.querySelectorAll('details tbody tr').length,
    named: svg.getAttribute('aria-labelledby').split(' ').every(id => document.getElementById(id))};
}
const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
const found = {plots, loaded: performance.getEntriesByType('resource').map(e => e.name),
  twice: ids.filter((id, i) => ids.indexOf(id) !== i), height: document.documentElement.scrollHeight,
  sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  paper: getComputedStyle(document.body).backgroundColor};
const pre = document.createElement('pre');
pre.id = 'found';
pre.textContent = JSON.stringify(found);
document.body.append(pre);
</script>"""

# Headless windows are no narrower than 500 pixels, so the page is in a frame of the width.
FRAME = """<!doctype html><meta charset="utf-8"><style>html,body{{margin:0}}iframe{{border:0;display:block}}</style>
<iframe id="page" src="{page}" width="{width}" height="{height}"></iframe>"""


def run_browser(browser, folder, page, scheme, *arguments):
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--enable-logging=stderr", "--log-level=0", "--disable-dev-shm-usage", "--no-first-run",
               "--disable-background-networking", "--allow-file-access-from-files",
               f"--user-data-dir={tempfile.mkdtemp(dir=folder)}", "--virtual-time-budget=1000",
               f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", *arguments, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    if done.returncode != 0:
        errors.append(f"Chromium ends with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout, errors


def look(browser, folder, page, pictures, width, scheme):
    """Returns what is wrong at a width and in a colour scheme."""
    probed = folder / f"probed_{width}_{scheme}.html"
    probed.write_text(page.read_text() + PROBE)
    framed = folder / f"framed_{width}_{scheme}.html"
    # The frame's document is in the DOM of the outer one once it is copied there.
    framed.write_text(FRAME.format(page=probed.name, width=width, height=1000) +
                      "<script>onload=()=>{const p=document.createElement('pre');p.id='found';"
                      "p.textContent=document.getElementById('page').contentDocument.getElementById('found')"
                      ".textContent;document.body.append(p)}</script>")
    dom, wrong = run_browser(browser, folder, framed, scheme, "--window-size=1280,1000", "--dump-dom")
    match = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    if not match:
        return wrong + ["the page did not run to its end"]
    found = json.loads(html.unescape(match.group(1)))
    wrong += what_is_wrong(found, width, scheme)
    framed.write_text(FRAME.format(page=page.as_uri(), width=width, height=found["height"]))
    picture = pictures / f"report_{width}_{scheme}.png"
    picture.unlink(missing_ok=True)
    _, errors = run_browser(browser, folder, framed, scheme, f"--screenshot={picture}",
                            f"--window-size={max(width, 500)},{found['height']}")
    if not picture.exists() or picture.stat().st_size < 20000:
        errors.append("there is no picture of the page")
    return wrong + errors


def what_is_wrong(found, width, scheme):
    wrong = [f"loaded {name}" for name in found["loaded"]]
    wrong += [f"the id '{name}' is there twice" for name in found["twice"]]
    if found["sideways"] > 0:
        wrong.append(f"the page is {found['sideways']} pixels wider than its window")
    light = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) > 3 * 128
    if light != (scheme == "light"):
        wrong.append(f"the page is {found['paper']} in the {scheme} scheme")
    for name in PLOTS:
        plot = found["plots"].get(name)
        if not plot:
            wrong.append(f"no plot {name}")
            continue
        if min(plot["box"]) < 100 or plot["place"][0] > width or plot["shapes"] < 4:
            wrong.append(f"{name} is not drawn: {plot}")
        if plot["outside"]:
            wrong.append(f"{name} has text outside the page: {plot['outside']}")
        if plot["table"] == 0 or not plot["named"]:
            wrong.append(f"{name} has no table or no name for readers of the screen")
    return wrong


def main():
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        print("skipped: no Chromium; install the package chromium")
        return 77
    source, pictures = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    pictures.mkdir(parents=True, exist_ok=True)
    page = pictures / "report.html"
    if source.suffix == ".html":
        page.write_text(source.read_text())
    else:
        page.write_text(subprocess.run([source], capture_output=True, text=True, timeout=60, check=True).stdout)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            looks = [(at, pool.submit(look, browser, pathlib.Path(folder), page, pictures, *at)) for at in LOOKS]
            wrong = [f"{width} pixels, {scheme}: {line}" for (width, scheme), result in looks for line in result.result()]
    print("\n".join(wrong) if wrong else f"{len(PLOTS)} plots drawn; pictures in {pictures}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
