"""Mode "pserver": one program becomes a trainers' program and one for each parameter server.

`updates` finds the operators that update parameters; `slicing` and `placement` assign the parts of
parameters to servers; `trainer`, `server` and `startup` make the programs, and
`geo` makes the programs of trainers that update locally.
"""
