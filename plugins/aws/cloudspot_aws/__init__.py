"""cloudspot on Amazon Web Services. Importing this imports no SDK; the service modules do, when used."""

from __future__ import annotations
