"""Permutation traffic on a torus in SimGrid: the finish of each message in seconds, as JSON.

usage: permutation.py SIZE BYTES RATE LATENCY_NS TO...

Node n of a torus of SIZE^3 sends BYTES to the n-th of TO, another node. Links have RATE bytes per second in each
direction. Bandwidth is shared by max-min fairness alone, without models of protocols.
"""

import json
import sys
import tempfile

from simgrid import Actor, Engine, Host, Mailbox

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="torus" prefix="node" suffix="" radical="0-{last}" speed="1Gf" bw="{rate}Bps"
           lat="{latency}ns" topology="TORUS" topo_parameters="{size},{size},{size}"
           sharing_policy="SPLITDUPLEX"/>
</platform>
"""

CONFIGURATION = [
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/weight-S:0",
]


def send(to, size):
    Mailbox.by_name(to).put("message", size)


def receive(finishes, node):
    Mailbox.by_name(str(node)).get()
    finishes[node] = Engine.clock


def main():
    size, length, rate, latency, *targets = [int(word) for word in sys.argv[1:]]
    engine = Engine(["permutation"] + ["--cfg=" + one for one in CONFIGURATION])
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as platform:
        platform.write(PLATFORM.format(last=size**3 - 1, rate=rate, latency=latency, size=size))
        platform.flush()
        engine.load_platform(platform.name)
    finishes = [0.0] * len(targets)
    for node, target in enumerate(targets):
        host = Host.by_name("node%d" % node)
        Actor.create("receive", host, receive, finishes, node)
        Actor.create("send", host, send, str(target), length)
    engine.run()
    print(json.dumps(finishes))


main()
