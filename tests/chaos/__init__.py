"""Chaos: jobs of real processes, to which everything that a plan says is done, and what has to be
true of them at their end.

    python -m tests.chaos --seed 1 --minutes 60      # or: make chaos SEED=1 MINUTES=60
    python -m tests.chaos --plan failed-plan.json    # play one plan again
    python -m tests.chaos --plan failed-plan.json --shrink

| module | holds |
|---|---|
| `plan` | plans: what is done to which job when; made from a seed, printed and read as JSON |
| `entry`, `program` | the processes of a job: what they train, how they wait for the harness and say where they are |
| `journal` | which of an asynchronous trainer's pushes were acknowledged |
| `processes` | starts and kills processes: by itself, starting again what died, or through jfluid-launch |
| `disk` | a disk that can be full |
| `play` | plays a plan |
| `check` | what has to be true at the end |
| `soak` | a job whose servers live as long as the harness, to see whether they grow |
| `shrink` | the smallest part of a plan that still fails |
| `growth` | by itself, or `make soak`: one process that makes and drops everything in turn, and must not grow |

Synchronous jobs have to end with the model of a job that nothing was done to, bit for bit. In the
other modes each push makes marks of its own, so that the end tells how often it was applied: never
twice; and what was acknowledged and is missing is what servers count as lost.
"""
