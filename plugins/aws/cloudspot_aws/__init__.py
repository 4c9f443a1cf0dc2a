"""cloudspot on Amazon Web Services. Importing this imports no SDK: the service modules do, when first used."""

from __future__ import annotations
