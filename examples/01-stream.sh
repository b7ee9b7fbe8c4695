#!/usr/bin/env bash
# Stream a chat completion with curl.
#   BASE_URL=http://127.0.0.1:8000/v1 API_KEY=sk-… examples/01-stream.sh
set -euo pipefail

curl --silent --show-error --fail-with-body --no-buffer "$BASE_URL/chat/completions" \
  -H "Authorization: Bearer $API_KEY" -H 'Content-Type: application/json' \
  -d '{
    "model": "base",
    "messages": [{"role": "user", "content": "Write the function read_lines. Return a list of all lines of a file."}],
    "max_tokens": 64,
    "stream": true,
    "stream_options": {"include_usage": true}
  }'
