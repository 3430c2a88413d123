"""The commands for a table of data."""

from torchmcl.cli.arguments import Commands
from torchmcl.cli.describe import add_describe_command
from torchmcl.cli.fit import add_fit_command
from torchmcl.cli.predict import add_predict_command
from torchmcl.cli.report import add_report_command

__all__ = ["add_table_commands"]


def add_table_commands(commands: Commands) -> None:
    """Add `describe`, `fit`, `predict` and `report` to the commands."""
    for add in (add_describe_command, add_fit_command, add_predict_command, add_report_command):
        add(commands)
