"""What the tests of real accounts are told by their command line."""


def pytest_addoption(parser):
    parser.addoption("--live", metavar="PROVIDER", required=True, help="whose account the tests use")
    parser.addoption("--live-options", metavar="JSON", default="{}", help="the table [providers.NAME]")
    parser.addoption("--live-store", metavar="URL", required=True, help="below it the tests write")
    parser.addoption(
        "--live-cost", metavar="N", type=float, default=2.0, help="the most that the run may cost"
    )
