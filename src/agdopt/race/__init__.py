"""The race: is this optimizer better on my problem, under equal terms, with seeds and error bars?

Task (data, model, loss), Plan (what to run), Record (one finished run). The training part imports
torch, NumPy and the standard library only, so that it runs on a bare GPU image.
"""
