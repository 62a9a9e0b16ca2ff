"""The texts of a load: those that are shipped, or the lines of a file."""

from __future__ import annotations

from pathlib import Path

from chattts_triton.errors import InvalidRequestError

# Short and long ones, figures, and both languages in one sentence; each is a single segment or two.
TEXTS = (
    "你好，世界。",
    "Good morning.",
    "四川美食确实以辣闻名，但也有不辣的选择。",
    "The train to the airport leaves every ten minutes.",
    "今天下午三点开会，请大家准时参加。",
    "Please leave your message after the tone.",
    "这本书一共三百二十页，我用了两天读完。",
    "It was raining when we left, so we took the car.",
    "请在2024年5月6日之前把报告发到我的邮箱。",
    "The total is $24.50, and delivery takes 3 days.",
    "我们用Python写了一个小程序，它每天早上自动运行。",
    "If you would like to speak to somebody, press one or stay on the line.",
)


def read_texts(path: Path) -> tuple[str, ...]:
    """One text a line, in UTF-8; empty lines are left out.

    Raises:
        InvalidRequestError: The file cannot be read, is no UTF-8 or has no text.
    """
    try:
        content = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InvalidRequestError(f"texts {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError.of(
            f"texts {path}", error.object[error.start : error.start + 8], "UTF-8"
        ) from error
    texts = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not texts:
        raise InvalidRequestError.of(f"texts {path}", "no text", "one text a line")
    return texts
