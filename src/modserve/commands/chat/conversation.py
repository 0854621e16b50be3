"""Conversation at a terminal: typed lines, commands that begin with ``/``, and answers as they arrive."""

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from modserve.core.errors import ModserveError

from ..remote_server import RemoteServer
from ..syntax import print_error
from ..terminal import GREY, PLAIN, takes_colours
from .completions import ChatResponse, Message, complete, figures

PROMPT, MORE = "> ", ". "
_QUOTES = '"""'
HELP = f"""\
/new          begin a new conversation
/system TEXT  set the system message, for all that follows; without TEXT, show it
/save FILE    write the conversation as JSON, the body of a request to chat/completions
/exit         leave, as Ctrl-D does
{_QUOTES}           begins and ends a message of several lines
Ctrl-C        stops an answer, and the model's work on it"""
_SYNONYMS = {"/clear": "/new", "/bye": "/exit", "/quit": "/exit", "/?": "/help"}
_SHOWN_CONTROLS = "\n\t"


class Conversation:
    """The messages so far, and how the model is called."""

    def __init__(
        self,
        server: RemoteServer,
        model: str,
        sampling: Mapping[str, float],
        *,
        system: str = "",
        verbose: bool = False,
    ) -> None:
        self.system = system
        self.messages: list[Message] = []
        self._server, self._model, self._sampling = server, model, sampling
        self._verbose = verbose
        self._written: set[Path] = set()

    def _all(self) -> list[Message]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def say(self, text: str) -> ChatResponse:
        """Send a message and print the answer as it arrives.

        After Ctrl-C, the part received is the answer. Raises UnreachableError and RefusedError, and the conversation is
        as before.
        """
        self.messages.append({"role": "user", "content": text})
        response = ChatResponse()
        screen = _Screen()
        try:
            complete(self._server, self._model, self._all(), self._sampling, response, screen.show, screen.show_thought)
        except KeyboardInterrupt:
            screen.end()
            if not response.text:
                self.messages.pop()
                return response
        except BaseException:
            screen.end()
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": response.text})
        screen.end()
        if self._verbose:
            note(figures(response))
        return response

    def new(self) -> None:
        self.messages.clear()

    def save(self, file: Path) -> None:
        """Save the conversation, overwriting only a file of its own. Raises OSError."""
        document = {"model": self._model, "messages": self._all(), **self._sampling}
        with file.open("w" if file in self._written else "x", encoding="utf-8") as out:
            json.dump(document, out, indent=2, ensure_ascii=False)
            out.write("\n")
        self._written.add(file)


class _Screen:
    """Printer of an answer's pieces, without control characters of the terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._end = "\n"
        self._is_thought = False

    def show_thought(self, piece: str) -> None:
        """Print a piece of the model's thought before its answer, for people only."""
        if self._is_terminal:
            self._is_thought = True
            self._write(piece, GREY if takes_colours() else "")

    def show(self, piece: str) -> None:
        if self._is_thought:
            self._is_thought = False
            self._write("\n\n")
        self._write(piece)

    def _write(self, piece: str, colour: str = "") -> None:
        if self._is_terminal:
            piece = "".join(
                character if character.isprintable() or character in _SHOWN_CONTROLS else "\N{REPLACEMENT CHARACTER}"
                for character in piece
            )
        self._end = piece[-1:]
        sys.stdout.write(f"{colour}{piece}{PLAIN}" if colour else piece)
        sys.stdout.flush()

    def end(self) -> None:
        """Finish the line."""
        if self._end != "\n":
            print(flush=True)
        self._end = "\n"
        self._is_thought = False


def note(text: str) -> None:
    """Print a remark of this program, which is not part of an answer."""
    sys.stdout.flush()
    print(f"{GREY}{text}{PLAIN}" if takes_colours(sys.stderr) else text, file=sys.stderr, flush=True)


def converse(conversation: Conversation, read: Callable[[str], str] = input) -> None:
    """Read lines and answer them until the person leaves."""
    with contextlib.suppress(ImportError):  # where Python has no such library, lines have no history
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message
    is_leaving = False
    while True:
        try:
            text = _read_message(read)
            is_leaving = False
            if not text.strip():
                continue
            if text.startswith("/"):
                if not _obey(conversation, text.split(maxsplit=1)):
                    return
            else:
                _respond(conversation, text)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            if is_leaving:
                return
            is_leaving = True
            note("Ctrl-C again or Ctrl-D leaves")


def _read_message(read: Callable[[str], str]) -> str:
    """Read a line, or the lines between two marks. Raises EOFError, KeyboardInterrupt."""
    text = read(PROMPT)
    if not text.startswith(_QUOTES):
        return readable(text)
    text = text.removeprefix(_QUOTES)
    while not text.rstrip().endswith(_QUOTES):
        text += "\n" + read(MORE)
    return readable(text.rstrip().removesuffix(_QUOTES))


def readable(text: str) -> str:
    """Return the text without lone surrogates, which stand for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _respond(conversation: Conversation, text: str) -> None:
    try:
        response = conversation.say(text)
    except ModserveError as error:
        print_error(error.message, getattr(error, "advice", ""))
        return
    if not response.finish_reason:
        note("(stopped)")
    elif response.finish_reason == "length":
        note("(the answer is cut off at its longest: --max-tokens allows more)")
    print()


def _obey(conversation: Conversation, words: Sequence[str]) -> bool:
    """Run a command, and return True if the conversation goes on."""
    name, value = _SYNONYMS.get(words[0], words[0]), words[1].strip() if len(words) > 1 else ""
    if name == "/exit":
        return False
    if name == "/new":
        conversation.new()
        note("a new conversation")
    elif name == "/system":
        conversation.system = value or conversation.system
        note(f"system: {conversation.system}" if conversation.system else "there is no system message")
    elif name == "/save" and value:
        try:
            conversation.save(Path(value).expanduser())
            note(f"wrote {value}")
        except FileExistsError:
            print_error(f"'{value}' already exists and is not overwritten")
        except OSError as error:
            print_error(f"cannot write '{value}': {error.strerror or error}")
    elif name == "/help":
        note(HELP)
    elif name == "/save":
        print_error("/save needs the name of a file")
    else:
        print_error(f"unknown command {words[0]}", "/help lists the commands; a space before / makes it a message")
    return True
