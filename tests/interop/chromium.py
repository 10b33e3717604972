"""A headless Chromium, spoken to over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_TIMEOUT_S = 300
# What a key of a keyboard is for a page.
_KEYS = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
}


def chromium_path() -> str:
    """Return the program; `conf/require.sh chromium` says what to install."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    raise FileNotFoundError("no Chromium is on PATH: sh conf/require.sh chromium")


def _start(commands: int, answers: int, profile: Path, width: int, height: int) -> int:
    """Start a browser that reads commands from descriptor 3 and writes answers to descriptor 4; return its process id."""
    # Above the two, so that neither replaces the other.
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (commands, answers)]
    path = chromium_path()
    command = [
        path,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        f"--window-size={width},{height}",
        "about:blank",
    ]
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, high[0], 3),
        (os.POSIX_SPAWN_DUP2, high[1], 4),
    ]
    try:
        return os.posix_spawn(path, command, os.environ, file_actions=actions, setpgroup=0)
    finally:
        for each in high:
            os.close(each)


class Chromium:
    """One page in a browser of its own. Use as a context manager.

    Attributes:
        complaints: What the page wrote to the console, and what the browser reported about it, such as violations of its
            Content-Security-Policy.
        requests: The addresses that the page asked for.
    """

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded: set[str] = set()
        self._number = 0
        (commands, self._to), (self._from, answers) = os.pipe(), os.pipe()
        self._process_id = _start(commands, answers, profile, width, height)
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._session: str | None = None
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
            self.send("Page.setLifecycleEventsEnabled", enabled=True)
            self.set_size(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its processes."""
        os.killpg(self._process_id, signal.SIGKILL)
        os.waitpid(self._process_id, 0)
        os.close(self._to)
        os.close(self._from)

    def forget(self) -> None:
        """Forget the complaints and requests so far."""
        self.complaints, self.requests = [], []

    def set_size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Give the page's window a size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def set_media(self, *, scheme: str = "light", media: str = "") -> None:
        """Choose the colour scheme that the user prefers, and the medium."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, address: str) -> None:
        """Load a page, and wait until the browser reports that it is loaded, which may be before its answer."""
        loader = self.send("Page.navigate", url=address)["loaderId"]
        while loader not in self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, modifiers=8 if shift else 0, **_KEYS[key])

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        """Save what is seen, or the whole page, as a PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its answer."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            is_heard = select.select([self._from], [], [], _TIMEOUT_S)[0]
            data = os.read(self._from, 1 << 20) if is_heard else b""
            if not data:
                raise RuntimeError(
                    "Chromium ended" if is_heard else f"Chromium said nothing for {_TIMEOUT_S} s"
                )
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._note(found)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"].get("text")))
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(parameters["args"]))
            case "Log.entryAdded":
                self.complaints.append(str(parameters["entry"].get("text")))
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {parameters['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Page.lifecycleEvent" if parameters["name"] == "load":
                self._loaded.add(parameters["loaderId"])
