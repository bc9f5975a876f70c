// Requests as programs in Node make them, by node:http and node:https.
//
// Arguments: seconds after which a request is given up, and the requests, each as REFUSAL=URL. A line for each.

const http = require("node:http");
const https = require("node:https");

const [patience, ...requests] = process.argv.slice(2);

function ask(url, options) {
  return new Promise((resolve) => {
    const failed = (error) => resolve(`${error.code} ${error.message}`);
    const { get } = url.startsWith("https:") ? https : http;
    const timeout = 1000 * patience;
    const request = get(url, { timeout, rejectUnauthorized: false, ...options }, (answer) => {
      let text = "";
      answer.on("data", (part) => (text += part));
      answer.on("end", () => resolve(`answer ${answer.statusCode} ${text}`));
      answer.on("error", failed);
    });
    request.on("timeout", () => request.destroy(new Error("given up")));
    request.on("error", failed);
  });
}

// A second request on the same connection has another host.
async function askAgain(url) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  await ask(url, { agent });
  const words = await ask(url, { agent, headers: { Host: "evil.example" } });
  agent.destroy();
  return words;
}

(async () => {
  for (const argument of requests) {
    const [refusal, url] = argument.split("=");
    const words = await (refusal === "later" ? askAgain(url) : ask(url, {}));
    process.stdout.write(`Node\t${refusal}\t${words.trim().replace(/\s+/g, " ")}\n`);
  }
})();
