"""The experiments of the field tier, which compares all optimizers."""

from __future__ import annotations

from typing import Final

FIELD: Final = (
    "field_autoencoder",
    "field_autoencoder_lamb",
    "field_alexnet",
    "field_language_model",
    "krona",
    "kronecker_rnn",
)
