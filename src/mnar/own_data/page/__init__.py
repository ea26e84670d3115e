"""Collect what the report of a run on own data shows; `mnar.report.own_data` writes the page.

portfolio.py and network.py collect the content for the two kinds of runs. The other files are its parts: precision and
confused classes, pictures and rows, the samples to label next, version and command.
"""
