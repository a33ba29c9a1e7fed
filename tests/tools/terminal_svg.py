#!/usr/bin/env python3
"""Draws what a program printed as an SVG picture of a terminal, for the README.

    ./run train 2>&1 | tests/tools/terminal_svg.py --title './run train' > runtime/cli/demo.svg
"""
import argparse
import html
import re
import sys

CELL, LINE, MARGIN, BAR = 7.8, 17, 14, 30  # in pixels; a monospaced font of 13 pixels
COLOURS = {"equal": ' fill="#7ee787"'}  # what was predicted and came true is the point of the picture


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--title", default="")
    arguments.add_argument("--columns", type=int, default=80)
    options = arguments.parse_args()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stdin.read()).rstrip("\n")
    # A progress bar draws over itself: what a carriage return leaves is the last state.
    lines = [line.split("\r")[-1] for line in text.split("\n")]
    wide = [line for line in lines if len(line) > options.columns]
    if wide:
        sys.exit(f"more than {options.columns} columns: {wide[0]}")
    width = options.columns * CELL + 2 * MARGIN
    height = len(lines) * LINE + BAR + MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
          ' font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="13">')
    print('<rect width="100%" height="100%" rx="8" fill="#1b1f27"/>')
    print(f'<text x="{MARGIN}" y="20" fill="#8b949e">$ {html.escape(options.title)}</text>')
    print('<g fill="#d6dbe2">')
    for number, line in enumerate(lines):
        # Columns stay in line in any font: each piece between blanks has a place of its own.
        pieces = [
            f'<tspan x="{MARGIN + piece.start() * CELL:.1f}"{COLOURS.get(piece.group(), "")}>'
            f"{html.escape(piece.group())}</tspan>"
            for piece in re.finditer(r"\S+(?: \S+)*", line)
        ]
        if pieces:
            print(f'<text y="{BAR + LINE * number + 12}">{"".join(pieces)}</text>')
    print("</g>\n</svg>")


if __name__ == "__main__":
    main()
