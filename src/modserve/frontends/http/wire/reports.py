"""Reports of the server's load as header lines, made once for all responses until the next report."""

from typing import Final

from modserve.core.statistics.load_report import LoadReport
from modserve.protocol.control import load_report

ON_REQUEST: Final = "request"
"""Value of the option by which only requests that ask for a report get one."""
FORMAT_HEADER: Final = load_report.FORMAT_HEADER.encode()


def lines(report: LoadReport, option: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the line for each response, empty if there is none; and the lines by format for requests that ask."""
    if option == ON_REQUEST:
        return b"", {name: _line(write(report)) for name, write in load_report.FORMATS.items()}
    return _line(load_report.FORMATS[option](report)), {}


def _line(value: str) -> bytes:
    return f"{load_report.HEADER}: {value}\r\n".encode("ascii")
