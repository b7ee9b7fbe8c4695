"""The sending process of the KV transfer tests: reads orders from stdin, answers on stdout."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from stratos.common.errors import StratosError
from stratos.core.kv import KvRange
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.port.local import LocalPort
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer
from tests.support.kv.kv_faults import Fault, FaultPlan, FaultySender
from tests.support.kv.kv_transfer_world import GatheringSender, payload_of
from tests.support.kv.port_process import FilePages, transport_of
from tests.support.kv.segment_memory import SEGMENTS


async def _sender(options):
    faults = {int(number): Fault(name) for name, number in options["faults"].items()}
    plan = FaultPlan(faults=faults, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    name = options["transport"]
    pages = FilePages(Path(options["pages"]), is_on_device=name == SEGMENTS)
    port = LocalPort({name: transport_of(options, InprocHub())}, pages)
    await port.prepare(name)  # the imports: a rendezvous now takes its usual time
    return FaultySender(GatheringSender(name, port, pages), plan)


async def _obey(sender, pairs, order):
    if order["do"] == "connect":
        offer = TransportOffer(**order["offer"])
        pairs[offer.pair] = await sender.connect(offer)
        return
    fields = order["header"]
    header = FrameHeader(**{**fields, "kv_range": KvRange(**fields["kv_range"])})
    pair = list(pairs.values())[-1]
    await pair.send(header, payload_of(header.seq, header.num_bytes))


async def main():
    sender = await _sender(json.loads(sys.argv[1]))
    print(json.dumps({"ok": True}), flush=True)
    pairs = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            await _obey(sender, pairs, json.loads(line))
            answer = {"ok": True}
        except StratosError as err:
            answer = {"error": err.code}
        print(json.dumps(answer), flush=True)
    await sender.close()


asyncio.run(main())
