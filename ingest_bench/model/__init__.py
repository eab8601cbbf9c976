"""The nouns of ingest-bench: frozen records that depend on no other package.

A field with a unit ends in it (`_ns`, `_bytes`, `_bps`, `_ppm`); its key in TOML is the name without the unit.
"""
