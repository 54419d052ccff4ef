from pathlib import Path


def data_root(p: Path | None) -> Path:
    return p or Path("/tmp")
