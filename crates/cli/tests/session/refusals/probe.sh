# Requests by curl and git.
#
# Arguments: client, seconds after which a request is given up, and the requests, each as REFUSAL=URL. A line
# for each.

set -f
client=$1 patience=$2
shift 2

ask_by_curl() {
  # A second request on the same connection has another host.
  again=()
  [ "$1" != later ] || again=(--next -sS -m "$patience" -H 'Host: evil.example' "$2")
  curl -sSk -m "$patience" "$2" "${again[@]}"
}

ask_by_git() {
  GIT_TERMINAL_PROMPT=0 timeout "$patience" git -c http.sslVerify=false ls-remote "$2"
}

for argument; do
  refusal=${argument%%=*}
  words=$("ask_by_$client" "$refusal" "${argument#*=}" 2>&1)
  # shellcheck disable=SC2086
  printf '%s\t%s\t%s\n' "$client" "$refusal" "$(echo $words)"
done
