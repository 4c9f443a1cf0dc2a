"""``cloudspot prove``: the first run on a real account, which answers the open questions about its cloud."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cloudspot.cli.completers import complete_providers
from cloudspot.cli.jobs import unnamed_store
from cloudspot.cli.screen import output
from cloudspot.cli.sharedoptions import overrides_option, parsed, store_option
from cloudspot.errors import CloudspotError, SpecError
from cloudspot.host.locks import try_lock
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.quantities import parse_duration, parse_money
from cloudspot_prove.questions import STEPS

if TYPE_CHECKING:
    from cloudspot_prove.run_record import RunRecord

DEFAULT_STEPS: Final = tuple(name for name in STEPS if name != "setup")


@click.command("prove")
@click.argument("name", metavar="PROVIDER", shell_complete=complete_providers)
@click.option(
    "--max-cost",
    default="2",
    show_default=True,
    metavar="AMOUNT",
    callback=parsed(parse_money),
    help='The most that all steps together may cost, such as "2 USD" or "15 CNY".',
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    type=click.Choice(DEFAULT_STEPS),
    help="Run only this step, in addition to check and price. Repeatable.",
)
@click.option(
    "--train-seconds",
    default="8m",
    show_default=True,
    metavar="DURATION",
    callback=parsed(parse_duration),
    help="How long each training run takes; it must be longer than a notice and a machine's boot together.",
)
@click.option("--gpu", metavar="NAME", help="Also train on this accelerator, such as T4.")
@click.option("--other-region", metavar="REGION", help="Also train in this region, where the bucket is not.")
@click.option(
    "--image-has-torch",
    is_flag=True,
    help="The image that --set names has PyTorch, so that no setup has to install it.",
)
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIRECTORY",
    help="Where to save the report. Default: the current directory.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before the start or before saving the report.")
@overrides_option
@store_option
@click.pass_context
def prove(
    ctx: click.Context,
    name: str,
    max_cost: tuple[float, str | None],
    steps: tuple[str, ...],
    train_seconds: float,
    gpu: str | None,
    other_region: str | None,
    image_has_torch: bool,
    path: Path,
    yes: bool,
    overrides: tuple[str, ...],
    store_url: str | None,
) -> None:
    """Run a few small jobs on an account of PROVIDER, and report which open questions they answer.

    The command first shows the price, and asks whether to start. Then it takes the steps in
    docs/first-real-run.md, which names the questions that each step answers. If it is killed, run it again to
    continue. No machine runs for longer than an hour, whatever happens. At the end, nothing is left in the
    account; the report, which contains no names that belong to the account, is shown before it is saved.
    """
    from cloudspot_prove.reporting import report_of, save, shown_lines
    from cloudspot_prove.run_record import Saved, new_run, unfinished_run
    from cloudspot_prove.running import NEEDED, clean_up, compare, record_this_process, work_through

    if not path.is_dir():
        raise SpecError(f"--output: there is no directory {path}; create it first")
    record = unfinished_run(name)
    if record is not None:
        output.echo(
            f"the run {record.began.run} was interrupted, and continues with the options with which it "
            f"began ({record.directory})"
        )
    else:
        taken = [one for one in DEFAULT_STEPS if not steps or one in {"check", "price", *steps}]
        record = new_run(
            name,
            store_url or unnamed_store().url,
            settings=overrides,
            max_cost=max_cost[0],
            currency=max_cost[1],
            train_seconds=train_seconds,
            steps=tuple(taken),
            image_has_torch=image_has_torch,
            gpu=gpu,
            other_region=other_region,
        )
    with try_lock(record.directory / "lock") as is_free:
        if not is_free:
            raise CloudspotError(f"the run {record.began.run} is being continued by another process")
        recorder = record_this_process(record)
        work_through(record, recorder, NEEDED)
        _agree(record, yes=yes)
        work_through(record, recorder, record.began.steps)
        clean_up(record, recorder)
        compare(record)
    report = report_of(record)
    for line in shown_lines(report):
        output.echo(line)
    output.confirm("Save this report?", action="save the report", otherwise="nothing was saved", yes=yes)
    for written in save(report, record, path):
        output.echo(f"written: {written}")
    record.write(Saved())
    ctx.exit(0 if report["passed"] else 1)


def _agree(record: RunRecord, *, yes: bool) -> None:
    """Show the possible cost of the run, and ask for consent unless the user has already given it."""
    from cloudspot_prove.bench import Bench
    from cloudspot_prove.running import may_buy, num_machines_of

    if not may_buy(record) or any(one for one in record.jobs()):
        return
    bench, began = Bench(record), record.began
    currency = record.ended["price"].facts["currency"]
    rows = [(step, bench.needed(number)) for step in began.steps if (number := num_machines_of(step))]
    output.echo_table(
        ("STEP", "COSTS AT THE MOST"), [(step, money_text(most, currency)) for step, most in rows]
    )
    whole = money_text(min(began.max_cost, sum(most for _, most in rows)), currency)
    output.confirm(
        f"Continue? All steps together cost at most {whole}, and most likely a quarter of that.",
        action="buy machines",
        otherwise="nothing was bought",
        yes=yes,
    )
