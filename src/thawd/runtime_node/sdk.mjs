// AWS's SDK in Node functions: is found on NODE_PATH, and cannot reach AWS itself under `thawd up --aws`.
//
// Clients of version 3 know AWS_ENDPOINT_URL since late 2023. Requests of older clients and of version 2 go to AWS and are
// refused before they leave. Source: AWS SDKs and tools reference guide, "Service-specific endpoints".

import http from "node:http";
import https from "node:https";
import * as module from "node:module";

const AWS = /(^|\.)(amazonaws\.com|amazonaws\.com\.cn|api\.aws)$/i;

/** Make `import` search NODE_PATH, too, if this version of Node supports that. */
export function searchNodePath() {
  if (process.env.NODE_PATH) module.register?.("./resolving.mjs", import.meta.url);
}

/** Refuse requests to AWS itself if AWS is emulated. */
export function keepHere() {
  if (process.env.THAWD_AWS !== "local") return;
  for (const one of [http, https]) {
    const { request } = one;
    one.request = function checked(...parts) {
      const host = hostOf(parts);
      if (AWS.test(host)) throw refusal(host);
      return request.apply(this, parts);
    };
    // Node's own `get` calls its internal `request`, not the exported one.
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
    return {}; // Node's own `request` raises the error
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

/** A text to add to an import's error if a client of the SDK is missing; empty for other errors. */
export function hint(error) {
  if (!/'@aws-sdk\//.test(String(error?.message))) return "";
  return (
    " (Lambda includes the clients of AWS's SDK; thawd finds them if npm has installed them globally: " +
    "npm install --global @aws-sdk/client-…, or include them in the function's node_modules)"
  );
}
