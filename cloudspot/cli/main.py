"""The program ``cloudspot``: find the command, and print expected errors as one line."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from cloudspot import __version__
from cloudspot.cli import exit_codes
from cloudspot.cli.invocation import Invocation, current_invocation
from cloudspot.cli.screen import output, stdstreams
from cloudspot.cli.sharedoptions import STORE_HELP, debug_option
from cloudspot.errors import CloudspotError
from cloudspot.host.left_calls import enforced_limits, is_any_under_way
from cloudspot.plugin.installed import COMMAND_GROUP, Declared, from_distributions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHORT_HELPS = {
    "init": "Write a job file to start from.",
    "plan": "Show what a job would launch, without launching it.",
    "offers": "Show what a job could buy now, and how soon it would be lost.",
    "simulate": "Show what a job would cost under each market policy.",
    "run": "Submit a job and follow it to its end.",
    "attach": "Follow and drive a job that is already submitted.",
    "reconcile": "Drive a store's unfinished jobs, once or continuously.",
    "image": "Make images of machines on which a job's setup is done.",
    "driver": "Let a cloud function drive the store's jobs.",
    "ps": "List jobs.",
    "show": "Show one job: an overview that fits a screen, or more by section.",
    "cost": "Add up what jobs have cost.",
    "compare": "Show how jobs differ.",
    "logs": "Print a job's log.",
    "checkpoints": "List, verify and export a job's checkpoints.",
    "artifacts": "List and download a job's artifacts.",
    "exec": "Run a command on one of a job's nodes.",
    "shell": "Open a shell on one of a job's nodes.",
    "cp": "Copy a file to or from one of a job's nodes.",
    "stacks": "Show what every rank of a job is doing.",
    "stop": "Save a checkpoint and stop a job.",
    "resume": "Resume a job that was stopped, has failed or is suspended.",
    "move": "Move a running job to another zone, machine type or market.",
    "fork": "Start a new job from a checkpoint of another one.",
    "reap": "End what jobs have left in the account and in the bucket.",
    "rm": "Delete finished jobs and all their data.",
    "preempt": "Reclaim one of a job's machines, as a drill.",
    "notify": "Check whether the messages of jobs arrive.",
    "providers": "List providers, and check that one is ready.",
    "setup": "Make everything that an account of PROVIDER needs before its first job.",
    "sandbox": "Run a command inside an emulated cloud.",
    "plugin": "Write a plugin, and check its promises.",
    "schema": "Print the JSON Schema of the job file.",
    "completion": "Print the completion script for a shell.",
}
"""The commands in the order of ``--help``, with their help lines; each key names a module and its function.

The lines are repeated here so that ``cloudspot --help`` imports no command; a test compares them with the
help lines of the commands."""

OTHER_NAMES = {
    **dict.fromkeys(("launch", "submit", "start", "train", "up"), "run"),
    **dict.fromkeys(("status", "list", "ls", "jobs", "queue"), "ps"),
    **dict.fromkeys(("describe", "info", "get", "inspect"), "show"),
    **dict.fromkeys(("down", "kill", "cancel", "terminate", "end"), "stop"),
    **dict.fromkeys(("delete", "remove", "destroy"), "rm"),
    **dict.fromkeys(("tail", "log", "output"), "logs"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("ssh", "connect", "login"), "shell"),
    **dict.fromkeys(("scp", "copy"), "cp"),
    **dict.fromkeys(("follow", "watch"), "attach"),
    **dict.fromkeys(("price", "prices", "gpus"), "offers"),
    **dict.fromkeys(("check", "doctor"), "providers check"),
}
"""Names of commands in other programs, with the corresponding commands here."""

MESSAGE_SECONDS = 22.0
"""How long a command waits at its end for its messages; a single message is given up earlier."""

_NO_ARGUMENTS: tuple[type[click.ClickException], ...] = tuple(
    # Before click 8.2, a group prints its help itself.
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)


class Program(click.Group):
    """The group of all commands; it imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of ``--help``, with plugins' commands last."""
        return [*SHORT_HELPS, *_commands_of_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name, or return None if there is no such command.

        Raises:
            PluginError: a plugin provides the command, but is broken.
        """
        if cmd_name in SHORT_HELPS:
            module = importlib.import_module(f"cloudspot.cli.commands.{cmd_name}")
            command = getattr(module, cmd_name)
            assert isinstance(command, click.Command)
        elif cmd_name in _commands_of_plugins():
            from cloudspot.registry import plugin_command

            command = plugin_command(cmd_name, click.Command)
        else:
            return None
        _take_debug(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; if it does not exist, the error suggests the nearest name, or what to install."""
        import difflib

        if args and args[0] not in SHORT_HELPS and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            if args[0] not in known:
                from cloudspot.registry import COMMAND, plugin_command

                if args[0] in COMMAND.together:
                    plugin_command(args[0], click.Command)  # says which distribution to install
                near = [OTHER_NAMES[args[0]]] if args[0] in OTHER_NAMES else []
                near = near or difflib.get_close_matches(args[0], known, n=1)
                advice = f" Did you mean {near[0]!r}?" if near else ""
                ctx.fail(f"No such command {args[0]!r}.{advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help line of each command without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SHORT_HELPS.items()))
        brought = _commands_of_plugins()
        if brought:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, _brought_by(declared)) for name, declared in brought.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands with their help lines, without importing the commands."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        lines = SHORT_HELPS | {name: _brought_by(one) for name, one in _commands_of_plugins().items()}
        return [
            CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)
        ]

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the program and end the process. Only this method turns errors into exit codes."""
        invocation = Invocation()
        stdstreams.prepare()
        extra |= {"standalone_mode": False, "obj": invocation}
        try:
            with enforced_limits():
                try:
                    code = super().main(*args, **extra)
                finally:
                    _close_stores()
            sys.stdout.flush()
        except _NO_ARGUMENTS as error:
            # A group without a command shows its help.
            click.echo(error.format_message(), file=sys.stderr)  # noqa: TID251 - our own words, in several lines
            code = error.exit_code
        except click.ClickException as error:
            hint = ""
            if isinstance(error, click.UsageError) and error.ctx is not None:
                hint = f" (see: {error.ctx.command_path} --help)"
            _report(error.format_message() + hint, invocation.debug)
            code = error.exit_code
        except CloudspotError as error:
            _report(str(error) + _store_note(str(error), invocation), invocation.debug)
            code = error.exit_code
        except click.Abort:
            code = exit_codes.INTERRUPTED
        except stdstreams.OutputLostError as error:
            stdstreams.abandon_output()
            code = exit_codes.PIPE_CLOSED
            if not error.is_closed_pipe:
                code = exit_codes.FAILED
                _report(str(error), invocation.debug)
        if code != exit_codes.INTERRUPTED:
            _finish_messages(invocation)
        sys.exit(code if isinstance(code, int) else 0)


def _commands_of_plugins() -> dict[str, Declared]:
    """Return the commands that plugins declare, by name, without imports; none replaces a built-in."""
    found = {one.name: one for one in from_distributions(COMMAND_GROUP) if one.error is None}
    return {name: found[name] for name in sorted(found.keys() - SHORT_HELPS.keys())}


def _close_stores() -> None:
    """Close the command's stores; most commands open none, and have not imported the registry."""
    registry = sys.modules.get("cloudspot.registry")
    if registry is not None and not is_any_under_way():
        registry.close_stores()


def _brought_by(declared: Declared) -> str:
    return f"From {declared.distribution} {declared.version}."


def _take_debug(command: click.Command) -> None:
    """Add the option --debug to the command and its subcommands."""
    if all(param.name != "debug" for param in command.params):
        debug_option(command)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _take_debug(below)


def _store_note(message: str, invocation: Invocation) -> str:
    """Return a note about the origin of the store in the message, unless the user has just typed its name."""
    chosen = invocation.chosen_store
    if chosen is None or chosen.origin == "--store" or chosen.url not in message:
        return ""
    return f" (this store: {chosen.origin})"


def _report(message: str, debug: bool) -> None:
    if debug:
        error = sys.exc_info()[1]
        assert error is not None, "an error is being handled"
        output.echo_traceback(error)
    output.echo_error(message)


def _finish_messages(invocation: Invocation) -> None:
    """Wait a limited time for the messages of the command's drivers, and warn about those that failed."""
    if invocation.outbox is None:
        return
    with suppress(KeyboardInterrupt, stdstreams.OutputLostError):
        invocation.outbox.wait(MESSAGE_SECONDS)
        for job_id, line in invocation.outbox.take_failures():
            output.warn(f"{job_id}: {line}")


def _note_store(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    current_invocation().store = value


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cloudspot", message="%(prog)s %(version)s")
@click.option("--store", metavar="STORE", expose_value=False, callback=_note_store, help=STORE_HELP)
@debug_option
def program() -> None:
    """Train on any cloud's spot machines without losing paid-for steps.

    A job is a job file (job.toml) and a training script. All of its state is in your object store, so any
    number of these commands can read or drive it at the same time.
    """


def main() -> None:
    """Run ``cloudspot`` with the arguments of the process."""
    try:
        program.main(prog_name="cloudspot")
    except SystemExit as end:
        if is_any_under_way():
            # A plugin's call is hanging, and Python would wait for its threads.
            stdstreams.end_process(int(end.code or 0))
        raise
