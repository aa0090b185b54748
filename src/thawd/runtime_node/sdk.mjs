// AWS's SDK in Node functions: found on NODE_PATH, and under `thawd up --aws` never on its way to AWS itself.
//
// Clients of version 3 know AWS_ENDPOINT_URL since late 2023. Older ones and those of version 2 do not: their requests
// are refused before they leave. Source: AWS SDKs and tools reference guide, "Service-specific endpoints".

import http from "node:http";
import https from "node:https";
import * as module from "node:module";

const AWS = /(^|\.)(amazonaws\.com|amazonaws\.com\.cn|api\.aws)$/i;

/** Have `import` look on NODE_PATH, too, where Node can be told to. */
export function searchNodePath() {
  if (process.env.NODE_PATH) module.register?.("./resolving.mjs", import.meta.url);
}

/** Refuse requests to AWS itself, where it is emulated. */
export function keepHere() {
  if (process.env.THAWD_AWS !== "local") return;
  for (const one of [http, https]) {
    const { request } = one;
    one.request = function checked(...parts) {
      const host = hostOf(parts);
      if (AWS.test(host)) throw refusal(host);
      return request.apply(this, parts);
    };
    // Node's own `get` calls the request that it knows, not the one that is exported.
    one.get = function get(...parts) {
      const asked = one.request(...parts);
      asked.end();
      return asked;
    };
  }
  module.syncBuiltinESMExports();
}

function hostOf([first, second]) {
  const options = typeof first === "string" || first instanceof URL ? { ...urlOf(first), ...objectOf(second) } : objectOf(first);
  return String(options.hostname ?? options.host ?? "").replace(/:\d+$/, "");
}

function urlOf(text) {
  try {
    return { hostname: new URL(text).hostname };
  } catch {
    return {}; // Node's own request tells what is wrong with it
  }
}

const objectOf = (value) => (typeof value === "object" && value !== null ? value : {});

function refusal(host) {
  const error = new Error(
    `thawd up --aws: this request would have gone to AWS itself (${host}) and was not sent. The SDK's client has an ` +
      "endpoint of its own, or does not know AWS_ENDPOINT_URL (version 2, and early releases of version 3): give it " +
      "`endpoint: process.env.AWS_ENDPOINT_URL`, or run `thawd up --aws-real` to use your account",
  );
  error.name = "LeavesForAwsError";
  return error;
}

/** What to add to an import's failure when it is a client of the SDK that is missing; empty otherwise. */
export function hint(error) {
  if (!/'@aws-sdk\//.test(String(error?.message))) return "";
  return (
    " (Lambda brings the clients of AWS's SDK; thawd finds them where npm has installed them for all: " +
    "npm install --global @aws-sdk/client-…, or bring them in the function's node_modules)"
  );
}
