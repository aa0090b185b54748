// Lets Node functions find AWS's SDK on NODE_PATH, and prevents it from reaching the real AWS under `thawd up --aws`.
//
// Clients of version 3 have supported AWS_ENDPOINT_URL since late 2023. Version 2 does not know it, so its configuration
// is given the endpoint when it is loaded. Older clients of version 3 send their requests to AWS, so these are refused
// before they are sent.
// Source: AWS SDKs and tools reference guide, "Service-specific endpoints"; AWS SDK for JavaScript version 2, "AWS.Config".

import http from "node:http";
import https from "node:https";
import * as module from "node:module";

const AWS = /(^|\.)(amazonaws\.com|amazonaws\.com\.cn|api\.aws)$/i;

/** Make `import` also search NODE_PATH, if this version of Node supports that. */
export function searchNodePath() {
  if (process.env.NODE_PATH) module.register?.("./resolving.mjs", import.meta.url);
}

/** If thawd emulates AWS, let version 2 of the SDK use it, and refuse requests to the real AWS. */
export function keepHere() {
  if (process.env.THAWD_AWS !== "local") return;
  configureVersion2(module.Module);
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

const VERSION_2 = /(^|[\\/]node_modules[\\/])aws-sdk([\\/]|$)/;
const ITS_CORE = /[\\/]aws-sdk[\\/]lib[\\/]core\.js$/;

/** Give version 2 of the SDK the endpoint when a function first loads a part of it. An endpoint of its own comes first. */
function configureVersion2(loader) {
  const load = loader._load;
  loader._load = function loaded(request, ...others) {
    const exported = load.call(this, request, ...others);
    if (VERSION_2.test(request)) {
      for (const [path, { exports }] of Object.entries(loader._cache)) {
        if (ITS_CORE.test(path) && exports?.config && !exports.config.endpoint) {
          exports.config.endpoint = process.env.AWS_ENDPOINT_URL;
          exports.config.s3ForcePathStyle = true; // the endpoint's host has no name for each bucket
        }
      }
    }
    return exported;
  };
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
    `thawd up --aws: this request was not sent, because it would have gone to the real AWS (${host}). The SDK's ` +
      "client has its own endpoint, or does not support AWS_ENDPOINT_URL (early releases of version 3). " +
      "Create it with `endpoint: process.env.AWS_ENDPOINT_URL`, or run `thawd up --aws-real` to use your AWS account",
  );
  error.name = "LeavesForAwsError";
  return error;
}

/** A text to add to the error of an import, if the missing module is a client of the SDK; empty for other errors. */
export function hint(error) {
  if (!/'@aws-sdk\//.test(String(error?.message))) return "";
  return (
    " (Lambda includes the clients of AWS's SDK; thawd does not. Install them with npm install --global " +
    "@aws-sdk/client-…, or include them in the function's node_modules)"
  );
}
