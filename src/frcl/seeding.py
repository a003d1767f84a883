"""One root seed, named random streams forked from it; nothing here touches the global state."""

import hashlib

import torch


def stream_seed(seed: int, name: str) -> int:
    """A 63-bit seed that depends on the root seed and the stream's name alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def fork(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for the stream `name` of the root seed."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, name))
