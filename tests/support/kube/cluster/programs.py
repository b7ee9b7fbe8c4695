"""Programs that run in pods, and where said on this machine too; each reads one line of JSON and prints JSON."""

from __future__ import annotations

STREAM = """
import json, sys, time
import httpx
url, key, body = json.loads(sys.stdin.readline())
events, first_s, start = [], None, time.monotonic()
headers = {"Authorization": f"Bearer {key}"}
with httpx.stream("POST", url, json=body, headers=headers, timeout=60, verify=False) as answer:
    status = answer.status_code
    if status != 200:
        events.append(answer.read().decode())
    for line in answer.iter_lines() if status == 200 else ():
        if line.startswith("data: "):
            first_s = first_s or time.monotonic() - start
            events.append(line[6:])
print(json.dumps({"status": status, "events": events, "first_s": first_s, "whole_s": time.monotonic() - start}))
"""

SDK = """
import json, ssl, sys
import httpx
from openai import OpenAI

task = json.loads(sys.stdin.readline())
verify = ssl.create_default_context(cadata=task["ca"]) if task["ca"] else True
client = OpenAI(base_url=task["url"], api_key=task["key"], http_client=httpx.Client(verify=verify), max_retries=10)
answers = []
for model, prompt in task["asked"]:
    tokens, text, pieces, reason = [], "", 0, None
    stream = client.completions.create(
        model=model, prompt=prompt, max_tokens=task["max_tokens"], temperature=0, stream=True,
        extra_body={"return_token_ids": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            tokens += (choice.model_extra or {}).get("token_ids") or []
            text += choice.text
            pieces += 1
            reason = choice.finish_reason or reason
    answers.append({"tokens": tokens, "text": text, "pieces": pieces, "finish_reason": reason})
print(json.dumps(answers))
"""

CAPTURE = """
import socket
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: a burst must not be lost
with open("/tmp/frames", "wb", buffering=0) as out:
    while True:
        frame, (interface, *_) = packets.recvfrom(1 << 17)
        if interface != "lo":  # a kubelet hands on there what kubectl exec sends: the node's own, not the pods' network
            out.write(frame)
"""

SEARCH = """
import json, sys
frames = open("/tmp/frames", "rb").read()
needles = json.loads(sys.stdin.readline())
found = {name: sum(bytes.fromhex(run) in frames for run in runs) for name, runs in needles.items()}
print(json.dumps({"bytes": len(frames), "found": found}))
"""

METRIC = """
import json, sys, urllib.request
name = json.loads(sys.stdin.readline())
text = urllib.request.urlopen("http://127.0.0.1:9100/metrics", timeout=10).read().decode()
print(sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)))
"""

# Deletes an adapter with the certificate of the pod that it runs in; prints the error.
DELETE = """
import asyncio, json, sys
from pathlib import Path
from stratos.common.tls.files import TlsFiles
from stratos.common.tls.settings import TlsConfig
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.registry import RegistryClient

folder, domain = Path("/etc/stratos/tls"), json.loads(sys.stdin.readline())
config = TlsConfig(
    certificate_path=folder / "tls.crt", key_path=folder / "tls.key", ca_path=folder / "ca.crt", domain=domain
)

async def main():
    registry = RegistryClient("127.0.0.1:9000", timeout_s=20.0, dialer=Dialer(TlsFiles(config)))
    try:
        await registry.delete("", "no-such-adapter")
        print("it was allowed")
    except Exception as error:
        print(type(error).__name__, error)
    await registry.close()

asyncio.run(main())
"""

# Connects to the KV port of a decode worker, from a pod that may, with a certificate that it is handed. Prints what
# came of it: for another role than a worker's the end of the connection.
KV_HELLO = """
import json, os, socket, ssl, sys, tempfile

task = json.loads(sys.stdin.readline())
folder = tempfile.mkdtemp()
for name, text in task["files"].items():
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.load_verify_locations(os.path.join(folder, "ca.crt"))
context.load_cert_chain(os.path.join(folder, "tls.crt"), os.path.join(folder, "tls.key"))
began = "connected"
try:
    with socket.create_connection((task["address"], task["port"]), 10) as raw, context.wrap_socket(raw) as connection:
        connection.settimeout(task["patience_s"])
        began = "handshake"
        try:
            came = connection.recv(1)
            began = "ended" if not came else "answered"
        except TimeoutError:
            began = "waits for the hello"
except OSError as error:
    began = f"{began}, then {type(error).__name__}"
print(json.dumps(began))
"""

DECLARED = """
import json, sys
import httpx

key = json.loads(sys.stdin.readline())
headers = {"Authorization": f"Bearer {key}"}
url = "https://127.0.0.1:8001/admin/v1/declaration"
answer = httpx.get(url, headers=headers, trust_env=False, verify=False)
print(json.dumps(answer.raise_for_status().json()))
"""

# A server of S3's protocol with one bucket, in memory.
S3 = """
import signal, sys
import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer

ThreadedMotoServer("0.0.0.0", 9000, verbose=False).start()
client = boto3.session.Session("stratos", "any", region_name="us-east-1").client(
    "s3", endpoint_url="http://127.0.0.1:9000", config=Config(s3={"addressing_style": "path"})
)
client.create_bucket(Bucket=sys.argv[1])
signal.sigwait([signal.SIGTERM])
"""

# Keeps so many requests open for so long, whatever comes back; prints how many answers had which status.
FLOOD = """
import asyncio, collections, json, sys, time
import httpx

url, key, body, num_at_once, seconds, answer_s = json.loads(sys.stdin.readline())

async def ask(client, end, statuses):
    while time.monotonic() < end:
        try:
            answer = await client.post(url, json=body)
            code = "" if answer.status_code in (200, 503) else f" {answer.json()['error']['code']}"
            statuses[f"{answer.status_code}{code}"] += 1
        except httpx.HTTPError as error:
            statuses[type(error).__name__] += 1
        await asyncio.sleep(0.2)

async def main():
    statuses, end = collections.Counter(), time.monotonic() + seconds
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=answer_s, headers=headers, limits=limits) as client:
        await asyncio.gather(*(ask(client, end, statuses) for _ in range(num_at_once)))
    print(json.dumps(statuses))

asyncio.run(main())
"""

# What Prometheus' discovery of the role "pod" finds, as a file: Debian's build of Prometheus knows no Kubernetes.
DISCOVER = r"""
import json, os, re, ssl, sys, time, urllib.request

namespace, path = sys.argv[1:]
account = "/var/run/secrets/kubernetes.io/serviceaccount"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/api/v1/namespaces/{namespace}/pods"
trust = ssl.create_default_context(cafile=f"{account}/ca.crt")
META = "__meta_kubernetes_"

def pods():
    token = open(f"{account}/token").read()
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    return json.load(urllib.request.urlopen(asked, context=trust, timeout=5))["items"]

def named(kind, entries):
    return {f"{META}pod_{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value for name, value in entries.items()}

def targets(pod):
    about, spec, status = pod["metadata"], pod["spec"], pod["status"]
    labels = {
        f"{META}namespace": namespace, f"{META}pod_name": about["name"], f"{META}pod_phase": status["phase"],
        f"{META}pod_node_name": spec.get("nodeName", ""), f"{META}pod_ip": status.get("podIP", ""),
        **named("label", about.get("labels", {})), **named("annotation", about.get("annotations", {})),
    }
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        for port in container.get("ports", ()):
            found = {
                f"{META}pod_container_name": container["name"],
                f"{META}pod_container_port_name": port.get("name", ""),
                f"{META}pod_container_port_number": str(port["containerPort"]),
            }
            yield {"targets": [f"{status['podIP']}:{port['containerPort']}"], "labels": labels | found}

while True:
    try:
        found = [target for pod in pods() if pod["status"].get("podIP") for target in targets(pod)]
        with open(f"{path}.new", "w") as file:
            json.dump(found, file)
        os.replace(f"{path}.new", path)
    except OSError as error:
        print("what was found last stays:", error, flush=True)
    time.sleep(2)
"""

# Ends the process of a pod as a crash does: kubectl deletes with a SIGTERM first, which a service takes as a drain.
KILL = """
import json, os, pathlib, sys

uid = json.loads(sys.stdin.readline())
names = (uid, uid.replace("-", "_"))
killed = []
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        is_of_pod = any(name in (folder / "cgroup").read_text() for name in names)
        if is_of_pod and b"stratos_" in (folder / "cmdline").read_bytes():
            os.kill(int(folder.name), 9)
            killed.append(int(folder.name))
    except (FileNotFoundError, ProcessLookupError):
        pass
print(json.dumps(killed))
"""
