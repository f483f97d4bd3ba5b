"""Ed25519 signatures over the manifest of a bundle, with keys in PEM files as ``openssl genpkey`` writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tileops.errors import TileOpsError

SIGNATURE_BYTES = 64


class SignatureError(TileOpsError):
    """A bundle is not signed with the expected key."""


def sign(data: bytes, private_key: str | os.PathLike[str]) -> bytes:
    """The signature of `data`, 64 bytes.

    Args:
        private_key: PEM file of an unencrypted Ed25519 private key.

    Raises:
        TileOpsError: the file holds no such key, or `cryptography` is not installed.
    """
    serialization, ed25519 = _cryptography()
    key = _load(private_key, lambda pem: serialization.load_pem_private_key(pem, password=None))
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise TileOpsError(f"{private_key} holds no Ed25519 private key; make one: openssl genpkey -algorithm ed25519")
    signature: bytes = key.sign(data)
    return signature


def check_signature(data: bytes, signature: bytes, public_key: str | os.PathLike[str]) -> None:
    """Returns if `signature` is that of `data` by the owner of `public_key`.

    Args:
        public_key: PEM file of an Ed25519 public key.

    Raises:
        SignatureError: it is not.
        TileOpsError: the file holds no such key, or `cryptography` is not installed.
    """
    serialization, ed25519 = _cryptography()
    from cryptography.exceptions import InvalidSignature

    key = _load(public_key, serialization.load_pem_public_key)
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise TileOpsError(f"{public_key} holds no Ed25519 public key; make one: openssl pkey -in KEY -pubout")
    try:
        key.verify(signature, data)
    except InvalidSignature:
        raise SignatureError(f"the signature was not made with the key of {public_key}") from None


def _load(path: str | os.PathLike[str], read: Any) -> Any:
    try:
        return read(Path(path).read_bytes())
    except (OSError, ValueError, TypeError) as error:  # unreadable, no PEM, or encrypted
        raise TileOpsError(f"cannot use the key {path}: {error}") from error


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise TileOpsError("signatures need the package 'cryptography': pip install 'tileops[signing]'") from error
    return serialization, ed25519
