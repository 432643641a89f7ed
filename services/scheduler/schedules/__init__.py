"""Schedules: tasks that are done at their times, each time once, whoever lives then.

Reading order: decide (what follows from a schedule's log and the clock; pure) > rows (which schedules there are, and whose
time has come) > keeper (does it).
"""
