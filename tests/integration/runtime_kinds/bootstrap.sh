#!/bin/sh
# The function of tests/integration/test_runtime_kinds.py, a runtime of its own in a shell with curl.
api="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime"
counter=0

refuse() {  # path, document
    curl -sS -H 'Lambda-Runtime-Function-Error-Type: ValueError' "$api/$1" -d "$2"
}
header() {
    sed -n "s/^$1: *\([^\r]*\).*/\1/ip" "$headers"
}
answer() {
    curl -sS "$api/invocation/$id/response" --data-binary @- > /dev/null
}

case "$FAIL" in
init) refuse init/error '{"errorType": "ValueError", "errorMessage": "no luck", "stackTrace": []}'; exit 1 ;;
exit) exit 7 ;;
esac
echo initialised

headers=$(mktemp)
while event=$(curl -sSf -D "$headers" "$api/invocation/next"); do
    id=$(header lambda-runtime-aws-request-id)
    counter=$((counter + 1))
    case "$event" in
    *'"do": "error"'*) refuse "invocation/$id/error" '{"errorType": "ValueError", "errorMessage": "boom"}' ;;
    *'"do": "sleep"'*) sleep 60 ;;
    *'"do": "exit"'*) exit 7 ;;
    *'"do": "large"'*)
        bytes=$(printf '%s' "$event" | sed 's/.*"bytes": \([0-9]*\).*/\1/')
        { printf '"'; head -c "$bytes" /dev/zero | tr '\0' x; printf '"'; } | answer ;;
    *'"do": "context"'*)
        client=$(header lambda-runtime-client-context)
        trace=$(header lambda-runtime-trace-id)
        left=$(($(header lambda-runtime-deadline-ms) - $(date +%s%3N)))
        arn=$(header lambda-runtime-invoked-function-arn)
        printf '{"id": "%s", "arn": "%s", "left_ms": %s, "client": %s, "trace": "%s"}' \
            "$id" "$arn" "$left" "${client:-null}" "$trace" | answer ;;
    *'"do": "environ"'*)
        { printf '{"cwd": "%s", "variables": [' "$PWD"
          env | sed 's/["\\]/\\&/g; s/^/"/; s/$/",/'
          printf '"END=1"]}'; } | answer ;;
    *)
        case "$event" in *'"do": "print"'*) echo "a line from the handler" ;; esac
        printf '{"event": %s, "counter": %s}' "$event" "$counter" | answer ;;
    esac
done
