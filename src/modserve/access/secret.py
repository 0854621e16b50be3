"""Secrets of keys: made here, and stored as SHA-256.

A secret has 256 random bits, so nobody can try them all, and a slow hash such as bcrypt, which protects what people
choose, would protect nothing more. It would cost each first request 50 ms. The server looks a secret up by its hash:
how long that takes does not depend on how much of a wrong one is right.
"""

import hashlib
import secrets
from typing import Final

PREFIX: Final = "msk_"
"""How secrets begin, so that people and scanners of source text recognise one."""
SHORTEST: Final = 16
"""Characters of a secret that an operator may choose."""


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str | bytes) -> str:
    """As the file of keys has it: SHA-256 in hexadecimal digits."""
    return hashlib.sha256(secret.encode() if isinstance(secret, str) else secret).hexdigest()
