"""What goes wrong between a trainer and a server, on purpose.

| module | holds |
|---|---|
| `relay` | a TCP relay: connections are cut, bytes delayed, slowed down, held back |
| `calls` | a relay of calls: requests and replies are lost, repeated and reordered |

HTTP/2 numbers its streams and counts its bytes: what changes single frames on the way makes a
broken connection of it, which cutting one is, too. So messages are lost, repeated and reordered
where they are whole, by a relay that takes each call and makes it again.
"""
