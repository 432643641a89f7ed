"""The vocabulary of Perdure: ids, events, runs, tasks, tools, subjects, streams, errors. Pure: no I/O, no clock."""
