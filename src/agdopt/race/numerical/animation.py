"""F3 as a GIF: where every optimizer is at a step."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from PIL import Image

from agdopt.race.numerical.canvas import COLOURS, contours, panels_of, position
from agdopt.race.numerical.functions import FUNCTIONS

FRAMES = 70


def palette() -> Image.Image:
    """The lines' colours, thinned towards white as at their edges, and greys: small files, true colours."""
    lines = [255 * np.array(to_rgb(colour)) for colour in COLOURS.values()]
    shades = [255 - share * (255 - line) for line in lines for share in (1, 0.7, 0.4)]
    greys = [np.full(3, level) for level in range(0, 256, 17)]
    image = Image.new("P", (1, 1))
    image.putpalette(np.concatenate(shades + greys).round().astype(int).tolist())
    return image


def animate(records: dict[str, dict[str, Any]], path: Path, comment: str) -> None:
    """Until Adam has arrived everywhere. Steps grow from frame to frame, as the pauses between events do."""
    figure, panels = panels_of(3, 8.0, 3.3)
    figure.set_dpi(80)
    races = {name: records[f"F3.{name}"]["optimizers"] for name in FUNCTIONS}
    last = max(optimizers["Adam"]["reached"][-1] for optimizers in races.values())
    moving = []
    for ax, (name, optimizers) in zip(panels, races.items(), strict=True):
        contours(ax, name)
        for optimizer, found in reversed(optimizers.items()):  # AGD on top
            style: Any = {"color": COLOURS[optimizer], "animated": True}
            (line,) = ax.plot([], [], linewidth=1, **style)
            (head,) = ax.plot([], [], "o", markersize=4, label=optimizer, **style)
            moving.append((ax, line, head, found["points"]))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=4)
    title = figure.suptitle("step 0", fontsize=9, animated=True)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    frames = []
    for step in [int(last * (i / (FRAMES - 1)) ** 2) for i in range(FRAMES)]:
        canvas.restore_region(still)
        title.set_text(f"step {step}")
        figure.draw_artist(title)
        for ax, line, head, points in moving:
            x, y = position(points, step)
            passed = [[px, py] for t, px, py in points if t <= step] + [[x, y]]
            line.set_data(*np.array(passed).T)
            head.set_data([x], [y])
            ax.draw_artist(line)
            ax.draw_artist(head)
        frame = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        frames.append(frame.quantize(palette=palette(), dither=Image.Dither.NONE))
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=[80] * (FRAMES - 1) + [3000],
        loop=0,
        comment=comment.encode(),
    )
