// A client of the Runtime API, over persistent connections.

import http from "node:http";

const PREFIX = "/2018-06-01/runtime/";
const ERROR_TYPE = "Lambda-Runtime-Function-Error-Type";

/** The platform refused a request. */
export class RefusedError extends Error {
  constructor(status, body) {
    super(`The Runtime API answered ${status}: ${body}`);
    this.name = "Runtime.Refused";
    this.status = status;
  }
}

export class RuntimeApi {
  /** @param {string} address host and port */
  constructor(address) {
    const colon = address.lastIndexOf(":");
    this.target = {
      host: address.slice(0, colon),
      port: Number(address.slice(colon + 1)),
      agent: new http.Agent({ keepAlive: true, maxSockets: 2, noDelay: true }),
    };
  }

  /** Wait for the next invocation. */
  async next() {
    const { headers, body } = await this.#exchange("GET", "invocation/next", 200);
    return {
      id: headers["lambda-runtime-aws-request-id"],
      deadlineMs: Number(headers["lambda-runtime-deadline-ms"]),
      arn: headers["lambda-runtime-invoked-function-arn"],
      traceId: headers["lambda-runtime-trace-id"],
      clientContext: headers["lambda-runtime-client-context"],
      identity: headers["lambda-runtime-cognito-identity"],
      tenantId: headers["lambda-runtime-aws-tenant-id"],
      body,
    };
  }

  /** @param {string} text JSON */
  response(id, text) {
    return this.#exchange("POST", `invocation/${id}/response`, 202, { body: text });
  }

  error(id, document) {
    return this.#exchange("POST", `invocation/${id}/error`, 202, errorRequest(document));
  }

  initError(document) {
    return this.#exchange("POST", "init/error", 202, errorRequest(document));
  }

  /** A response whose body is written piece by piece; `done` settles when the platform has accepted it. */
  stream(id, contentType) {
    let request;
    const done = new Promise((resolve, reject) => {
      request = http.request({
        ...this.target,
        method: "POST",
        path: `${PREFIX}invocation/${id}/response`,
        headers: {
          "Content-Type": contentType,
          "Transfer-Encoding": "chunked",
          "Lambda-Runtime-Function-Response-Mode": "streaming",
          Trailer: [ERROR_TYPE, "Lambda-Runtime-Function-Error-Body"],
        },
      });
      request.on("error", reject);
      request.on("response", (response) => collect(response, 202, resolve, reject));
    });
    return { request, done };
  }

  #exchange(method, path, wanted, { body, headers = {} } = {}) {
    return new Promise((resolve, reject) => {
      const data = body === undefined ? undefined : Buffer.from(body);
      if (data !== undefined) {
        headers["Content-Type"] ??= "application/json";
        headers["Content-Length"] = data.length;
      }
      const request = http.request({ ...this.target, method, path: PREFIX + path, headers });
      request.on("error", reject);
      request.on("response", (response) => collect(response, wanted, resolve, reject));
      request.end(data);
    });
  }
}

/** Body and headers of a request that reports an error. */
function errorRequest(document) {
  return { body: JSON.stringify(document), headers: { [ERROR_TYPE]: headerValue(document.errorType) } };
}

/** `text` as a header's value, which may contain only visible ASCII characters. */
function headerValue(text) {
  return String(text).replace(/[^\x20-\x7e]/g, "?").slice(0, 1024);
}

function collect(response, wanted, resolve, reject) {
  const pieces = [];
  response.on("data", (piece) => pieces.push(piece));
  response.on("error", reject);
  response.on("end", () => {
    const body = Buffer.concat(pieces).toString();
    if (response.statusCode === wanted) resolve({ headers: response.headers, body });
    else reject(new RefusedError(response.statusCode, body));
  });
}
