"""Metaflow's own options, which stand before a flow's command, as its command line declares them."""

from convoy.launch.restarts.command_line import CONFIGS


def values_of_options() -> dict[str, int]:
    """How many words follow each option."""
    from metaflow.cli import start

    counts = {}
    for option in start.params:
        flag = getattr(option, "is_flag", False) or getattr(option, "count", False)
        for name in (*option.opts, *option.secondary_opts):
            counts[name] = 0 if flag else option.nargs
    # Which it adds to a flow that has any: NAME and FILE, NAME and VALUE.
    return {**counts, **dict.fromkeys(CONFIGS, 2)}
