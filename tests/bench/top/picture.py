"""A terminal's screen as a picture: converts the output of `tmux capture-pane -p -e` on stdin to SVG on stdout.

    tmux -L t new-session -d -x 100 -y 26 'paceline top RUN'; sleep 20
    tmux -L t capture-pane -p -e | python3 tests/bench/top/picture.py 100 > docs/pictures/top-64.svg
"""

import re
import sys
from html import escape

WIDE, HIGH, MARGIN = 8.4, 18, 14
PAPER, TEXT, FAINT = "#11171c", "#d8dee4", "#8b98a5"
COLOURS = {"1": "#ff6b5e", "2": "#5fbf77", "3": "#e8b339", "31": "#ff6b5e", "32": "#5fbf77", "33": "#e8b339"}


def style(state, codes):
    """Applies the codes of an escape sequence to the text style."""
    if not codes:
        codes = ["0"]
    index = 0
    while index < len(codes):
        code = codes[index]
        if code == "0":
            state = {}
        elif code == "1":
            state = {**state, "bold": True}
        elif code == "2":
            state = {**state, "faint": True}
        elif code == "7":
            state = {**state, "reverse": True}
        elif code == "38" and codes[index + 1 : index + 2] == ["5"]:
            state = {**state, "fill": COLOURS.get(codes[index + 2], TEXT)}
            index += 2
        elif code == "39":
            state = {key: value for key, value in state.items() if key != "fill"}
        elif code in COLOURS and len(code) == 2:
            state = {**state, "fill": COLOURS[code]}
        index += 1
    return state


def line(text, y, state):
    """The parts of a line, each at its column, independent of the font."""
    out, column = [], 0
    for piece in re.split(r"(\x1b\[[0-9;]*m)", text):
        codes = re.fullmatch(r"\x1b\[([0-9;]*)m", piece)
        if codes:
            state = style(state, [code for code in codes[1].split(";") if code])
            continue
        for word in re.finditer(r"\S+( \S+)*", piece):
            x, long = MARGIN + (column + word.start()) * WIDE, len(word[0]) * WIDE
            fill = state.get("fill", FAINT if state.get("faint") else TEXT)
            weight = ' font-weight="bold"' if state.get("bold") else ""
            out.append(
                f'<text x="{x:.1f}" y="{y}" fill="{fill}"{weight} textLength="{long:.1f}" lengthAdjust="spacingAndGlyphs">'
                f"{escape(word[0])}</text>"
            )
        column += len(piece)
    return out, state


def main():
    columns = int(sys.argv[1])
    lines = sys.stdin.read().rstrip("\n").split("\n")
    width, height = 2 * MARGIN + columns * WIDE, 2 * MARGIN + len(lines) * HIGH
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
        f'font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" xml:space="preserve">'
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>'
    )
    state = {}
    for index, text in enumerate(lines):
        out, state = line(text, MARGIN + index * HIGH + 13, state)
        print("\n".join(out))
    print("</svg>")


main()
