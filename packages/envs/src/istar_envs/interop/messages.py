"""Chat messages as they travel: pictures become data addresses, as OpenAI's API has them."""

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from istar_envs.agent import Message


def portable(messages: Sequence[Message]) -> list[Message]:
    """Return messages that are ready for JSON.

    Args:
        messages: As ``Conversation.messages`` returns them; pictures are uint8[height, width, 3].
    """
    return [
        message
        if isinstance(message["content"], str)
        else {**message, "content": [_portable(part) for part in message["content"]]}
        for message in messages
    ]


def _portable(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    buffer = io.BytesIO()
    Image.fromarray(part["image"]).save(buffer, format="PNG")
    address = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"type": "image_url", "image_url": {"url": address}}
