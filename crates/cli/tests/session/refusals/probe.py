"""Requests as programs in Python make them, by urllib and http.client.

Arguments: seconds after which a request is given up, and the requests, each as REFUSAL=URL. A line for each.
"""

import http.client
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

PATIENCE = float(sys.argv[1])
ANY_SERVER = ssl._create_unverified_context()


def ask(refusal, url):
    if refusal == "later":
        return ask_again(urllib.parse.urlsplit(url))
    with urllib.request.urlopen(url, timeout=PATIENCE, context=ANY_SERVER) as answer:
        return f"answer {answer.status} {answer.read()}"


def ask_again(url):
    """A second request on the same connection has another host."""
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
    for host in (url.netloc, "evil.example"):
        connection.request("GET", "/", headers={"Host": host})
        answer = connection.getresponse()
        text = answer.read()
    return f"answer {answer.status} {text}"


for argument in sys.argv[2:]:
    refusal, url = argument.split("=", 1)
    try:
        words = ask(refusal, url)
    except urllib.error.HTTPError as error:
        words = f"{type(error).__name__} {error} {error.read()}"
    except Exception as error:
        words = f"{type(error).__name__} {error}"
    print("Python", refusal, " ".join(words.split()), sep="\t", flush=True)
