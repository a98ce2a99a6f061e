"""The paper as a program: its tables, figures and theorems as cells, each with a status and a verdict.

`cell` reads what there is to reproduce, `evidence` finds the records that answer, `verdict` says what they
amount to, `listing` brings them together, `page` and `figures` write docs/results.md.
"""
