"""The observer that records attempts into the directory `debug.record`."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import msgspec

from toolwire.config.settings import Settings
from toolwire.core.backend import Ask, Opening
from toolwire.core.errors import BackendFault
from toolwire.core.recording import Head
from toolwire.core.sse import Frame
from toolwire.reader import ReplySplitter
from toolwire.turns.observers import AttemptInfo, AttemptObserver
from toolwire.upstream.record import Recorder


def make_recordings(settings: Settings) -> Sequence[AttemptObserver]:
    """The observer that records attempts, if the settings turn it on."""
    return (Recordings(settings),) if settings.debug.record else ()


class Recordings:
    """Records attempts in one file for each turn: a later attempt replaces an earlier one."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.debug.record
        self._environment = settings.environment

    def attempt(self, info: AttemptInfo) -> "AttemptRecording":
        request = info.request
        # Some dialects name the model in the path, where also stands whether to stream.
        whole = {"model": request.model, "stream": request.stream, **request.fields}
        body = request.body or (msgspec.json.encode(whole) if request.fields else b"")
        head = Head(1, info.kind, info.model, dialect=request.dialect)
        secrets = (info.client_key, self._environment.get(info.key_variable, ""))
        return AttemptRecording(Recorder(self._folder, info.seed, head, body, secrets))


class AttemptRecording:
    """Records one attempt: a stream frame by frame, a plain reply in one piece."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._splitter = ReplySplitter()
        self._refusal: list[bytes] | None = None  # the body of an error
        self._is_over = False

    def ask(self, opening: Opening, headers: Callable[[], Mapping[str, str]]) -> None:
        self._recorder.record_opening(opening)

    def reply(self, status: int, headers: Mapping[str, str]) -> None:
        kind = headers.get("content-type", "")
        self._recorder.start(monotonic(), status, kind)
        self._splitter = ReplySplitter(kind)
        self._refusal = None if 200 <= status < 300 else []

    def read(self, data: bytes) -> None:
        if self._refusal is not None:
            self._refusal.append(data)
        elif not self._is_over:
            try:
                self._write(self._splitter.feed(data))
            except BackendFault:  # a frame is too large; the turn fails too
                self._is_over = True

    def send(self, messages: Sequence[Ask | bytes]) -> None:
        self._recorder.record_messages(monotonic(), messages)

    def end(self) -> None:
        if self._refusal is not None:
            self._recorder.record_body(monotonic(), b"".join(self._refusal))
        elif self._splitter.is_plain:
            self._recorder.record_body(monotonic(), self._splitter.body)
        elif not self._is_over:
            self._write(self._splitter.end())
        self._is_over = True

    def close(self) -> None:
        self._recorder.close()

    def _write(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self._recorder.record_frame(monotonic(), frame)
