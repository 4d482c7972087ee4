"""Pictures of how the compiler works, asked of the compiler: `python -m figures.explain` writes them to docs/."""
