"""Mode "pserver": one program becomes a trainers' program and one for each parameter server.

`updates` reads what of the program updates its parameters; `slicing` and `placement` decide which
server holds which part of which parameter; `trainer`, `server` and `startup` make the programs, and
`geo` those of trainers that update by themselves.
"""
