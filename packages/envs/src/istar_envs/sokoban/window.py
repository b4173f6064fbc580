"""A window for render mode ``human``, made with the tkinter of the standard library."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from istar_envs.errors import EnvError


class Window:
    """Shows one picture at a time.

    Args:
        title: Text of the title bar.

    Raises:
        EnvError: If tkinter is not installed or there is no display.
    """

    def __init__(self, title: str) -> None:
        fix = 'Use render_mode="rgb_array" or "ansi", or run where a display is available.'
        try:
            import tkinter
        except ImportError as error:
            raise EnvError(f'cannot open a window: {error} (render_mode="human"). {fix}') from error
        try:
            self._root = tkinter.Tk()
        except tkinter.TclError as error:
            raise EnvError(f'cannot open a window: {error} (render_mode="human"). {fix}') from error
        self._root.title(title)
        self._label = tkinter.Label(self._root, borderwidth=0)
        self._label.pack()
        self._make_image: Any = tkinter.PhotoImage
        self._image: Any = None

    def show(self, picture: NDArray[np.uint8]) -> None:
        """Replace the picture, uint8[height, width, 3]."""
        height, width, _ = picture.shape
        data = b"P6 %d %d 255\n" % (width, height) + picture.tobytes()
        self._image = self._make_image(master=self._root, data=data, format="PPM")
        self._label.configure(image=self._image)
        self._root.update()

    def close(self) -> None:
        """Close the window."""
        self._root.destroy()
