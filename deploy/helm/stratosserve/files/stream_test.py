"""`helm test`: stream a chat completion through the Service, and see that it comes in pieces and ends as it should."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

TRIES, PAUSE_S, TIMEOUT_S = 30, 2.0, 60.0
MAX_TOKENS = 12


def main() -> int:
    """Exit code 0 when a whole stream came."""
    url, model = os.environ["STRATOS_TEST_URL"], os.environ["STRATOS_TEST_MODEL"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {os.environ['STRATOS_TEST_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310
    for left in reversed(range(TRIES)):
        try:
            return _stream(request)
        except (OSError, urllib.error.HTTPError) as error:
            # Right after an installation the key may not be known yet, and there may be no worker.
            print(f"{url}: {error}", file=sys.stderr)
            if not left:
                return 1
            time.sleep(PAUSE_S)
    return 1


def _stream(request: urllib.request.Request) -> int:
    # What is tested is the path through the Service, not who signed its certificate.
    context = ssl._create_unverified_context() if request.type == "https" else None  # noqa: S323
    chunks, is_done, usage, finish = 0, False, None, None
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                is_done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                print(f"the stream ended with {event['error']}", file=sys.stderr)
                return 1
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                chunks += bool(choice["delta"].get("content"))
                finish = choice["finish_reason"] or finish
    print(f"{chunks} chunks with text, finish_reason {finish}, usage {usage}")
    tokens = (usage or {}).get("completion_tokens", 0)
    return 0 if is_done and finish in ("stop", "length") and 0 < tokens <= MAX_TOKENS else 1


if __name__ == "__main__":
    sys.exit(main())
