"""Amounts of money as text for people."""

from __future__ import annotations

from collections.abc import Mapping


def money_text(amount: float, currency: str) -> str:
    """Return an amount of money with two decimals, or with four if it is below ten units."""
    return f"{amount:.4f} {currency}" if abs(amount) < 10 else f"{amount:,.2f} {currency}"


def cost_text(spent: float, on_demand: float, currency: str, others: Mapping[str, float]) -> str:
    """Return the amount spent, and how much it saves compared with the same machine time on demand."""
    besides = "".join(f", and {money_text(amount, other)}" for other, amount in others.items())
    if on_demand <= 0:
        return money_text(spent, currency) + besides
    saved = f"{100 * (1 - spent / on_demand):.0f}% saved"
    return f"{money_text(spent, currency)} (on demand {money_text(on_demand, currency)}: {saved}){besides}"
