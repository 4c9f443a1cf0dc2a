"""The budget of an AWS account's setup, which warns about the month's bill.

Source: AWS Budgets API reference, the operations' pages (checked 2026-11).
"""

from __future__ import annotations

from cloudspot.model import PartState
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.setupcalls import AwsCall
from cloudspot_aws.setuppart import AwsPart, unless


class Budget(AwsPart):
    """A budget of the account that sends a warning by mail; it ends no machine."""

    def __init__(self, clients: AwsClients, name: str, *, account: str, limit: float, warn: str) -> None:
        """Warn at ``limit``, in USD a month."""
        budget = {
            "BudgetName": name,
            "BudgetLimit": {"Amount": f"{limit:g}", "Unit": "USD"},
            "TimeUnit": "MONTHLY",
            "BudgetType": "COST",
        }
        alarm = {
            "Notification": {
                "NotificationType": "ACTUAL",
                "ComparisonOperator": "GREATER_THAN",
                "Threshold": 100.0,
                "ThresholdType": "PERCENTAGE",
            },
            "Subscribers": [{"SubscriptionType": "EMAIL", "Address": warn}],
        }
        super().__init__(
            clients,
            "budget",
            name,
            f"sends an email to {warn} when the account's bill for a month exceeds {limit:g} USD; it ends "
            "nothing",
            making=[
                AwsCall(
                    "budgets",
                    "CreateBudget",
                    {"AccountId": account, "Budget": budget, "NotificationsWithSubscribers": [alarm]},
                    ("DuplicateRecordException",),
                )
            ],
            removing=[
                AwsCall(
                    "budgets",
                    "DeleteBudget",
                    {"AccountId": account, "BudgetName": name},
                    ("NotFoundException",),
                )
            ],
        )
        self._account, self._budget = account, budget

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the budget exists and has the wanted limit."""
        client = self.clients.client("budgets")
        answer = unless(
            "NotFoundException",
            lambda: client.describe_budget(AccountId=self._account, BudgetName=self.name),
        )
        if answer is None:
            return PartState(exists=False)
        found = answer["Budget"].get("BudgetLimit", {})
        wanted = self._budget["BudgetLimit"]
        assert isinstance(wanted, dict)
        is_same = float(found.get("Amount", "nan")) == float(wanted["Amount"])
        return PartState(exists=True, lacks=() if is_same else (f"it warns at {found.get('Amount')} USD",))

    def create(self) -> None:
        """Make the budget, or replace one that has another limit."""
        if self.state(is_own=True).lacks:
            self.delete()
        super().create()
