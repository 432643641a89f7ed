"""What the five services share; the layers are named in pyproject.toml and executed by import-linter."""
