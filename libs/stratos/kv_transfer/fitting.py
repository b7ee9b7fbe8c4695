"""Checks of a payload against its header and offer, before it is moved."""

from __future__ import annotations

from stratos.core.device.payload import DevicePayload, Payload
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer


def checked_payload(offer: TransportOffer, header: FrameHeader, payload: Payload | bytes | bytearray) -> memoryview:
    """The payload as bytes of the host; raises ``ValueError`` when it does not fit the offer or its header."""
    data = fitting_payload(offer, header, payload)
    return data if isinstance(data, memoryview) else data.to_host()


def fitting_payload(offer: TransportOffer, header: FrameHeader, payload: Payload | bytes | bytearray) -> Payload:
    """The payload where it lies; raises ``ValueError`` when it does not fit the offer or its header."""
    data = payload if isinstance(payload, DevicePayload) else memoryview(payload).cast("B")
    if not data.nbytes:
        raise ValueError("a frame must have a payload")
    if not 0 <= header.slot < offer.num_slots:
        raise ValueError(f"there is no slot {header.slot}: the pair has {offer.num_slots}")
    if data.nbytes > offer.slot_bytes:
        raise ValueError(f"{data.nbytes} bytes do not fit a slot of {offer.slot_bytes}; plan smaller frames")
    if data.nbytes != header.num_bytes:
        raise ValueError(f"the payload has {data.nbytes} bytes, its header says {header.num_bytes}")
    return data
